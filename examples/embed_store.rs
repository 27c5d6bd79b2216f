//! How do I keep objects in my own program, and get back exactly what I put?
//!
//! An object is bytes, and its name is their hash. What is acknowledged is on disk; what is read is verified on the way.

use std::{error::Error, sync::Arc, time::Duration};

use ron_core::{Deadline, Supervisor, disk::RealDisk};
use ron_storage::{Gc, Store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let soon = || Deadline::after(Duration::from_secs(5));

    let host = Supervisor::new("first run");
    let disk = Arc::new(RealDisk::open(dir.path())?);
    let store = Store::builder().data(disk, "objects").start(&host).await?;
    let stored = store.put_bytes("hello".into(), soon()).await?;
    println!("{} is {:?}", stored.id, stored.durability);
    store.pin(stored.id, soon()).await?;
    host.shutdown().await;

    let host = Supervisor::new("second run");
    let disk = Arc::new(RealDisk::open(dir.path())?);
    let store = Store::builder().data(disk, "objects").start(&host).await?;
    let mut reader = store.get(stored.id, 1..3, soon()).await?;
    while let Some(bytes) = reader.next().await? {
        println!("bytes 1 to 3 are {:?}", std::str::from_utf8(&bytes)?);
    }
    // It has a place among the streams, for which a stop waits.
    drop(reader);
    let collected = store.gc(Gc::new(), soon()).await?;
    println!("a collection removes {} and leaves {}", collected.objects, collected.kept);
    let is_right = store.get_bytes(stored.id, 1 << 20, soon()).await? == "hello";
    host.shutdown().await;
    if is_right { Ok(()) } else { Err("other bytes came back".into()) }
}
