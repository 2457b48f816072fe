//! Writing to Kubernetes: carries out what the core asks for.
//!
//! Flows in: [`KubeWrite`]s with their id. Flows out: one result per id. A bounded
//! number is in flight; what waits when leadership ends is dropped, not sent.

pub mod client;
pub mod resource;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::facts::ObjectRef;
use crate::io::{KubeError, KubeWrite};
use crate::lease::Authority;
use crate::metrics::Metrics;
use client::{Api, ApiError};
use resource::Resource;

/// Writes in flight at once. The API server answers one in milliseconds; more of
/// them only queue there and push other clients out of its fair share.
const IN_FLIGHT: usize = 64;

/// How long one write may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Carries out writes, each in its own task.
#[derive(Clone)]
pub struct Writer {
    api: Api,
    authority: Authority,
    metrics: Arc<Metrics>,
    replies: mpsc::UnboundedSender<(u64, Result<(), KubeError>)>,
    permits: Arc<Semaphore>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Writer {
    /// A writer whose answers go to `replies`. The channel has no bound, since the
    /// core bounds what it asks for.
    pub fn new(
        api: Api,
        authority: Authority,
        metrics: Arc<Metrics>,
        replies: mpsc::UnboundedSender<(u64, Result<(), KubeError>)>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT));
        Self {
            api,
            authority,
            metrics,
            replies,
            permits,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Starts a write; its answer comes with `id`.
    pub fn submit(&self, id: u64, write: KubeWrite) {
        let this = self.clone();
        self.tasks.spawn(async move {
            let result = tokio::select! {
                biased;
                () = this.stop.cancelled() => Err(KubeError::Retry("shutting down".to_owned())),
                result = this.perform(&write) => result,
            };
            this.metrics.kube_write(&write, &result);
            let _ = this.replies.send((id, result));
        });
    }

    async fn perform(&self, write: &KubeWrite) -> Result<(), KubeError> {
        let _permit = self.permits.acquire().await.map_err(|error| KubeError::Retry(error.to_string()))?;
        // Asked at the last moment: a process that was paused while it waited must not write.
        if !self.authority.valid() {
            return Err(KubeError::Retry("not the leader".to_owned()));
        }
        send(&self.api, write).await
    }

    /// Waits until all writes are answered, `grace` at most, then drops the rest.
    pub async fn finish(&self, grace: Duration) {
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait()).await.is_err() {
            self.abort();
        }
    }

    /// Drops everything that is not answered yet.
    pub fn abort(&self) {
        self.tasks.close();
        self.stop.cancel();
    }
}

/// Sends one write.
///
/// # Errors
/// Mapped by [`map_error`].
pub async fn send(api: &Api, write: &KubeWrite) -> Result<(), KubeError> {
    let unknown = |object: &ObjectRef| KubeError::Invalid(format!("no resource for {object}"));
    let result = match write {
        KubeWrite::Patch { object, uid, status, patch } => {
            let resource = Resource::of(object.kind).ok_or_else(|| unknown(object))?;
            let mut path = resource.object(object);
            if *status && resource.status_subresource {
                path.push_str("/status");
            }
            api.merge_patch(&path, &guarded(patch, uid), TIMEOUT).await
        }
        KubeWrite::Create { object, body } => {
            let resource = Resource::of(object.kind).ok_or_else(|| unknown(object))?;
            api.create(&resource.parent(&object.namespace), &complete(&resource, object, body), TIMEOUT).await
        }
        KubeWrite::Delete { object, uid } => {
            let resource = Resource::of(object.kind).ok_or_else(|| unknown(object))?;
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions",
                "preconditions": { "uid": &**uid },
                "propagationPolicy": "Background",
            });
            api.delete(&resource.object(object), &options, TIMEOUT).await
        }
    };
    result.map(drop).map_err(|error| map_error(write, error))
}

/// The patch with the UID that must match.
fn guarded(patch: &Value, uid: &str) -> Value {
    let mut patch = patch.clone();
    if let Value::Object(fields) = &mut patch {
        let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
        if let Value::Object(metadata) = metadata {
            metadata.insert("uid".to_owned(), uid.into());
        }
    }
    patch
}

/// The object to create with what the core leaves to this place: apiVersion, kind,
/// name, namespace.
fn complete(resource: &Resource, object: &ObjectRef, body: &Value) -> Value {
    let mut body = body.clone();
    if let Value::Object(fields) = &mut body {
        fields.entry("apiVersion").or_insert_with(|| resource.api_version.into());
        fields.entry("kind").or_insert_with(|| resource.name.into());
        let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
        if let Value::Object(metadata) = metadata {
            metadata.entry("name").or_insert_with(|| (&*object.name).into());
            if resource.namespaced {
                metadata.entry("namespace").or_insert_with(|| (&*object.namespace).into());
            }
        }
    }
    body
}

/// What a failure means for the core.
///
/// A UID that does not match is told in two ways: a patch that carries another
/// `metadata.uid` is *invalid* (the field is immutable), a delete whose precondition
/// fails is a *conflict*. Both mean that our object is gone.
pub fn map_error(write: &KubeWrite, error: ApiError) -> KubeError {
    let ApiError::Status { code, reason, message, fields } = &error else {
        return KubeError::Retry(error.to_string());
    };
    // The API server words a failed precondition in more than one way, but always names it.
    let about_uid = || {
        fields.iter().any(|field| field == "metadata.uid") || message.to_lowercase().contains("precondition")
    };
    match (code, write) {
        (404, _) => KubeError::Gone,
        (409, KubeWrite::Create { .. }) if reason == "AlreadyExists" => KubeError::Exists,
        (409, _) if about_uid() => KubeError::Gone,
        (422, KubeWrite::Patch { .. }) if about_uid() => KubeError::Gone,
        (403, _) => KubeError::Retry(format!(
            "{error}; grant this to the controller's ClusterRole (deploy/ has the complete one)"
        )),
        (400 | 405 | 413 | 415 | 422, _) => KubeError::Invalid(error.to_string()),
        _ => KubeError::Retry(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Kind;
    use rstest::rstest;

    fn pod() -> ObjectRef {
        ObjectRef::namespaced(Kind::Pod, "a", "b")
    }

    fn patch() -> KubeWrite {
        KubeWrite::Patch {
            object: pod(),
            uid: "u1".into(),
            status: false,
            patch: json!({"metadata": {"labels": {}}}),
        }
    }

    fn create() -> KubeWrite {
        KubeWrite::Create { object: ObjectRef::cluster(Kind::Ip, "b.a"), body: json!({"spec": {}}) }
    }

    fn delete() -> KubeWrite {
        KubeWrite::Delete { object: pod(), uid: "u1".into() }
    }

    fn status(code: u16, reason: &str, message: &str, field: Option<&str>) -> ApiError {
        let fields = field.map(str::to_owned).into_iter().collect();
        ApiError::Status { code, reason: reason.into(), message: message.into(), fields }
    }

    #[rstest]
    #[case(patch(), status(404, "NotFound", "", None), "Gone")]
    #[case(patch(), status(422, "Invalid", "metadata.uid: field is immutable", Some("metadata.uid")), "Gone")]
    #[case(patch(), status(422, "Invalid", "spec.x: bad", Some("spec.x")), "Invalid")]
    #[case(patch(), status(409, "Conflict", "the object has been modified", None), "Retry")]
    #[case(
        patch(),
        status(
            409,
            "Conflict",
            "Precondition failed: UID in precondition: u1, UID in object meta: u2",
            None
        ),
        "Gone"
    )]
    #[case(
        delete(),
        status(
            409,
            "Conflict",
            "Precondition failed: UID in precondition: u1, UID in object meta: u2",
            None
        ),
        "Gone"
    )]
    #[case(
        delete(),
        status(
            409,
            "Conflict",
            "Operation cannot be fulfilled on Pod \"b\": the UID in the precondition (u1) does not match the UID in record (u2). The object might have been deleted and then recreated",
            None
        ),
        "Gone"
    )]
    #[case(delete(), status(409, "Conflict", "the object has been modified", None), "Retry")]
    #[case(delete(), status(404, "NotFound", "", None), "Gone")]
    #[case(create(), status(409, "AlreadyExists", "", None), "Exists")]
    #[case(create(), status(422, "Invalid", "metadata.uid", None), "Invalid")]
    #[case(create(), status(400, "BadRequest", "", None), "Invalid")]
    #[case(create(), status(403, "Forbidden", "", None), "Retry")]
    #[case(create(), status(429, "TooManyRequests", "", None), "Retry")]
    #[case(create(), status(500, "InternalError", "", None), "Retry")]
    #[case(create(), ApiError::Timeout(TIMEOUT), "Retry")]
    #[case(create(), ApiError::Transport("reset".into()), "Retry")]
    fn errors(#[case] write: KubeWrite, #[case] error: ApiError, #[case] expected: &str) {
        let mapped = map_error(&write, error);
        assert!(format!("{mapped:?}").starts_with(expected), "{mapped:?}");
    }

    #[test]
    fn patches_carry_the_uid_and_nothing_else_new() {
        let patched = guarded(&json!({"metadata": {"annotations": {"a": null}}, "spec": {"x": 1}}), "u1");
        assert_eq!(patched, json!({"metadata": {"uid": "u1", "annotations": {"a": null}}, "spec": {"x": 1}}));
        assert_eq!(guarded(&json!({"status": {}}), "u1"), json!({"status": {}, "metadata": {"uid": "u1"}}));
    }

    #[test]
    fn created_objects_are_complete() {
        let resource = Resource::of(Kind::Ip).unwrap();
        let body =
            complete(&resource, &ObjectRef::cluster(Kind::Ip, "b.a"), &json!({"spec": {"ipAddress": "x"}}));
        assert_eq!(
            body,
            json!({"apiVersion": "kubeovn.io/v1", "kind": "IP", "metadata": {"name": "b.a"}, "spec": {"ipAddress": "x"}})
        );
    }
}
