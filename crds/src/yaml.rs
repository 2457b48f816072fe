//! The definitions as YAML files.

use crate::schema;

const HEAD: &str = "# Generated from crds/src/schema by `cargo run -p crds --bin crds-gen`. Don't edit.\n";

/// All definitions: file name and content, in the order of [`crate::KINDS`].
pub fn all() -> Result<Vec<(String, String)>, serde_yaml_ng::Error> {
    schema::all()
        .iter()
        .map(|definition| {
            let body = serde_yaml_ng::to_string(&definition.to_json())?;
            Ok((format!("{}.yaml", definition.name()), format!("{HEAD}{body}")))
        })
        .collect()
}
