//! Objects as 6+3 shards: what the code alone costs, what cutting and putting together costs with every shard and the object held
//! against its name, and what that costs through a store on a disk.
//!
//! The raw libraries work on cells of 64 KiB that are in the cache, one thread, and check nothing. Ours through the store is durable when
//! it counts. Missing are the first shards, which are data: a parity shard that is missing costs a reader nothing.

use std::{hint::black_box, sync::Arc, time::Duration};

use bytes::Bytes;
use reed_solomon_erasure::galois_8;
use ron_core::{ContentId, Deadline, Supervisor, disk::RealDisk};
use ron_storage::{
    Store,
    logic::{
        manifest::Manifest,
        shards::{ReedSolomon, decode, encode},
    },
};

use crate::measure::{Bench, Contender, Outcome, Sample, Series, Stopwatch, interleave, runtime, table};

const DATA: usize = 6;
const PARITY: usize = 3;
const CELL: usize = 64 << 10;

/// Mebibytes of a round, and of each object of ours.
const WORK: u64 = 192;
const OBJECT: u64 = 12;

pub(crate) fn run(bench: &Bench) -> Outcome<()> {
    let work = bench.scaled(WORK).max(OBJECT);
    println!("MiB of object a second, and in brackets CPU s/GiB; 6+3, cells of 64 KiB:\n");
    let mut rows: Vec<Vec<String>> = Vec::new();
    let dir = tempfile::tempdir()?;
    let through = Through::open(dir.path())?;
    let kinds = [Kind::Encode, Kind::Missing(1), Kind::Missing(2), Kind::Missing(3)];
    for kind in kinds {
        let contenders = vec![
            Contender::new("reed-solomon-simd", || simd(kind, work)),
            Contender::new("reed-solomon-erasure, simd-accel", || matrices(kind, work)),
            Contender::new("ours, names checked", || ours(kind, work)),
            Contender::new("ours, through the store", || through.round(kind, work)),
        ];
        for (at, series) in interleave(bench, contenders)?.iter().enumerate() {
            if rows.len() <= at {
                rows.push(vec![series.name.to_owned()]);
            }
            rows[at].push(told(series));
        }
    }
    table(&["", "encode", "one missing", "two missing", "three missing"], &rows);
    through.close();
    Ok(())
}

#[derive(Clone, Copy)]
enum Kind {
    Encode,
    Missing(usize),
}

fn told(series: &Series<Sample>) -> String {
    let rate = series.median(Sample::per_second);
    let cpu = series.median(|sample| sample.cpu.as_secs_f64() * 1024.0 / sample.items as f64);
    format!("{rate:.0} ({cpu:.2})")
}

fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn stripes(mebibytes: u64) -> u64 {
    (mebibytes << 20) / (DATA * CELL) as u64
}

/// What so many stripes are, which may be a little less than was asked for.
fn mebibytes(stripes: u64) -> u64 {
    (stripes * (DATA * CELL) as u64) >> 20
}

fn simd(kind: Kind, work: u64) -> Outcome<Sample> {
    let cells: Vec<Vec<u8>> = (0..DATA as u64).map(|at| content(CELL, at)).collect();
    let mut encoder = reed_solomon_simd::ReedSolomonEncoder::new(DATA, PARITY, CELL)?;
    cells.iter().try_for_each(|cell| encoder.add_original_shard(cell))?;
    let parity: Vec<Vec<u8>> = encoder.encode()?.recovery_iter().map(<[u8]>::to_vec).collect();
    let count = stripes(work);
    let mut decoder = reed_solomon_simd::ReedSolomonDecoder::new(DATA, PARITY, CELL)?;
    let watch = Stopwatch::start();
    for _ in 0..count {
        match kind {
            Kind::Encode => {
                cells.iter().try_for_each(|cell| encoder.add_original_shard(cell))?;
                black_box(encoder.encode()?.recovery(0));
            }
            Kind::Missing(missing) => {
                for (at, cell) in cells.iter().enumerate().skip(missing) {
                    decoder.add_original_shard(at, cell)?;
                }
                for (at, cell) in parity.iter().enumerate().take(missing) {
                    decoder.add_recovery_shard(at, cell)?;
                }
                black_box(decoder.decode()?.restored_original(0));
            }
        }
    }
    Ok(watch.stop(mebibytes(count)))
}

fn matrices(kind: Kind, work: u64) -> Outcome<Sample> {
    let code = galois_8::ReedSolomon::new(DATA, PARITY)?;
    let mut cells: Vec<Vec<u8>> = (0..DATA as u64).map(|at| content(CELL, at)).collect();
    cells.resize(DATA + PARITY, vec![0; CELL]);
    code.encode(&mut cells)?;
    let mut some: Vec<(Vec<u8>, bool)> = cells.iter().map(|cell| (cell.clone(), true)).collect();
    let count = stripes(work);
    let watch = Stopwatch::start();
    for _ in 0..count {
        match kind {
            Kind::Encode => code.encode(&mut cells)?,
            Kind::Missing(missing) => {
                some[..missing].iter_mut().for_each(|(_, is_there)| *is_there = false);
                code.reconstruct_data(&mut some)?;
            }
        }
    }
    black_box((&cells, &some));
    Ok(watch.stop(mebibytes(count)))
}

fn ours(kind: Kind, work: u64) -> Outcome<Sample> {
    let whole = content((OBJECT << 20) as usize, 1);
    let (manifest, shards) = encode(&whole, DATA as u8, PARITY as u8, &ReedSolomon)?;
    let count = work / OBJECT;
    let watch = Stopwatch::start();
    for _ in 0..count {
        match kind {
            Kind::Encode => drop(black_box(encode(&whole, DATA as u8, PARITY as u8, &ReedSolomon)?)),
            Kind::Missing(missing) => {
                drop(black_box(decode(&manifest, &there(&shards, missing), &ReedSolomon)?));
            }
        }
    }
    Ok(watch.stop(count * OBJECT))
}

/// The shards that are left, as many as it takes.
fn there(shards: &[Bytes], missing: usize) -> Vec<(u8, Bytes)> {
    (0..).zip(shards.iter().cloned()).skip(missing).take(DATA).collect()
}

/// A store on a disk, as one node has it.
struct Through {
    runtime: tokio::runtime::Runtime,
    host: Supervisor,
    store: Store,
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(600))
}

impl Through {
    fn open(dir: &std::path::Path) -> Outcome<Self> {
        let runtime = runtime()?;
        let (host, store) = runtime.block_on(async {
            let host = Supervisor::new("erasure");
            let disk = Arc::new(RealDisk::open(dir)?);
            let store = Store::builder().data(disk, "store").start(&host).await?;
            Outcome::Ok((host, store))
        })?;
        Ok(Through { runtime, host, store })
    }

    fn close(self) {
        self.runtime.block_on(self.host.shutdown());
    }

    fn round(&self, kind: Kind, work: u64) -> Outcome<Sample> {
        let count = work / OBJECT;
        self.runtime.block_on(async {
            let mut put = Vec::new();
            let objects: Vec<Bytes> =
                (0..count).map(|_| content((OBJECT << 20) as usize, fastrand::u64(..)).into()).collect();
            if let Kind::Missing(missing) = kind {
                for whole in &objects {
                    let manifest = self.put(whole).await?;
                    for shard in &manifest.shards[..missing] {
                        self.store.delete(*shard, soon()).await?;
                    }
                    put.push(manifest);
                }
            }
            let watch = Stopwatch::start();
            match kind {
                Kind::Encode => {
                    for whole in &objects {
                        put.push(self.put(whole).await?);
                    }
                }
                Kind::Missing(missing) => {
                    for manifest in &put {
                        self.rebuild(manifest, missing).await?;
                    }
                }
            }
            let sample = watch.stop(count * OBJECT);
            for id in put.iter().flat_map(|manifest| &manifest.shards) {
                self.store.delete(*id, soon()).await?;
            }
            Ok(sample)
        })
    }

    /// Cuts an object up, and puts its shards, durably.
    async fn put(&self, whole: &Bytes) -> Outcome<Manifest> {
        let (manifest, shards) = encode(whole, DATA as u8, PARITY as u8, &ReedSolomon)?;
        for shard in shards {
            self.store.put_bytes(shard, soon()).await?;
        }
        Ok(manifest)
    }

    /// What a repair does: reads as many shards as it takes, makes the object, cuts it up again, and puts what is missing.
    async fn rebuild(&self, manifest: &Manifest, missing: usize) -> Outcome<()> {
        let mut some = Vec::new();
        for (index, shard) in (0_u8..).zip(&manifest.shards).skip(missing).take(DATA) {
            some.push((index, self.store.get_bytes(*shard, u64::MAX, soon()).await?));
        }
        let whole = decode(manifest, &some, &ReedSolomon)?;
        let (_, shards) = encode(&whole, DATA as u8, PARITY as u8, &ReedSolomon)?;
        for shard in shards.into_iter().take(missing) {
            let id: ContentId = self.store.put_bytes(shard, soon()).await?.id;
            if !manifest.shards.contains(&id) {
                return Err("it is not the shard that was missing".into());
            }
        }
        Ok(())
    }
}
