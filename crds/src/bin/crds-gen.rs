//! Writes the custom resource definitions into `deploy/crds/`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    std::fs::create_dir_all(&folder)?;
    let files = crds::yaml::all()?;
    // A kind that was dropped must not stay behind.
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        if !files.iter().any(|(name, _)| entry.file_name() == name.as_str()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    for (name, content) in &files {
        std::fs::write(folder.join(name), content)?;
    }
    println!("{} definitions written to deploy/crds", files.len());
    Ok(())
}
