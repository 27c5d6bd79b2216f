//! How do I keep records so that what I acknowledged survives a crash?
//!
//! Many tasks append to one journal; each is answered when its record is on disk. Then the journal is opened again,
//! as after a restart, and read from the start.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use ron_core::{
    Deadline, Supervisor,
    disk::RealDisk,
    journal::{Item, Journal, Position, Settings},
};

/// The meaning of a record is the caller's; the journal keeps the number.
const VISIT: u8 = 1;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let deadline = Deadline::after(Duration::from_secs(10));

    let host = Supervisor::new("first run");
    let disk = Arc::new(RealDisk::open(dir.path())?);
    let (journal, _) = Journal::open(&host, disk, Path::new("visits"), Settings::default()).await?;
    let (anna, boris) = tokio::join!(
        journal.append(VISIT, "anna".into(), deadline),
        journal.append(VISIT, "boris".into(), deadline),
    );
    println!("anna is on disk at {}, boris at {}", anna?, boris?);
    host.shutdown().await;

    let host = Supervisor::new("second run");
    let disk = Arc::new(RealDisk::open(dir.path())?);
    let (journal, recovered) = Journal::open(&host, disk, Path::new("visits"), Settings::default()).await?;
    println!("recovered {} records", recovered.records);
    // A scan blocks, so it goes to a thread that may.
    let reader = journal.reader();
    let scan = move || reader.scan(Position::START).collect::<Result<Vec<_>, _>>();
    let mut visitors = Vec::new();
    for item in host.blocking("scan", deadline, scan).await?? {
        if let Item::Record(record) = item {
            visitors.push(String::from_utf8(record.payload.to_vec())?);
        }
    }
    assert_eq!(visitors, ["anna", "boris"]);
    host.shutdown().await;
    Ok(())
}
