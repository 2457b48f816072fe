//! Who may read the metrics: the API server decides.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use sha2::{Digest, Sha256};

/// How long a yes is believed; a no is asked for again, since a role may just have been given.
const BELIEVED: Duration = Duration::from_secs(60);
/// Answers kept.
const KEPT: usize = 64;

type Key = ([u8; 32], String);

/// Asks, and remembers for a while.
#[derive(Clone)]
pub struct Access {
    client: Client,
    allowed: Arc<Mutex<HashMap<Key, Instant>>>,
}

/// Why somebody may not read.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// No token, or none that is known.
    Unknown,
    /// Known, without the right.
    Forbidden(String),
    /// The API server did not say.
    Unsaid(String),
}

impl Access {
    /// Over a client of the API server.
    pub fn new(client: Client) -> Self {
        Self { client, allowed: Arc::default() }
    }

    async fn check(&self, token: Option<&str>, verb: &str, path: &str) -> Result<(), Refused> {
        let token = token.filter(|token| !token.is_empty()).ok_or(Refused::Unknown)?;
        // Not the token itself: what is not in memory can't be read from it.
        let key: Key = (Sha256::digest(token.as_bytes()).into(), format!("{verb} {path}"));
        {
            let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
            allowed.retain(|_, since| since.elapsed() < BELIEVED);
            if allowed.contains_key(&key) {
                return Ok(());
            }
        }
        self.ask(token, verb, path).await?;
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        if allowed.len() < KEPT {
            allowed.insert(key, Instant::now());
        }
        Ok(())
    }

    async fn ask(&self, token: &str, verb: &str, path: &str) -> Result<(), Refused> {
        let unsaid = |error: kube::Error| Refused::Unsaid(error.to_string());
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await.map_err(unsaid)?.status;
        let user = status
            .filter(|status| status.authenticated == Some(true))
            .and_then(|status| status.user)
            .ok_or(Refused::Unknown)?;
        let name = user.username.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some(verb.to_owned()),
                }),
                resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await.map_err(unsaid)?.status;
        match status {
            Some(status) if status.allowed && status.denied != Some(true) => Ok(()),
            _ => Err(Refused::Forbidden(name)),
        }
    }
}

/// Lets through who may read.
pub async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|text| text.strip_prefix("Bearer ")).map(str::trim);
    let verb = request.method().as_str().to_lowercase();
    match access.check(token, &verb, request.uri().path()).await {
        Ok(()) => next.run(request).await,
        Err(Refused::Unknown) => {
            (StatusCode::UNAUTHORIZED, "a bearer token that the API server knows is needed\n").into_response()
        }
        Err(Refused::Forbidden(user)) => {
            let text = format!(
                "{user} may not {verb} {}; give it a ClusterRole with nonResourceURLs [\"{}\"]\n",
                request.uri().path(),
                request.uri().path()
            );
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Err(Refused::Unsaid(error)) => {
            tracing::warn!(error, "the API server does not say who may read the metrics");
            (StatusCode::INTERNAL_SERVER_ERROR, "the API server does not answer; see this program's log\n")
                .into_response()
        }
    }
}
