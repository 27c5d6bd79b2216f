//! SQLite with a write-ahead log that is synced at every commit. One connection, one transaction a commit, as a program
//! has it that does not group commits itself.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use rusqlite::{Connection, TransactionBehavior};

use crate::measure::Outcome;

pub(crate) struct Sqlite(Arc<Mutex<Connection>>);

impl Sqlite {
    pub(crate) fn open(dir: &Path) -> Outcome<Self> {
        let connection = Connection::open(dir.join("log.db"))?;
        connection.execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; \
             CREATE TABLE log(number INTEGER PRIMARY KEY, payload BLOB); \
             CREATE TABLE head(id INTEGER PRIMARY KEY, version INTEGER); INSERT INTO head VALUES(1, 0);",
        )?;
        Ok(Sqlite(Arc::new(Mutex::new(connection))))
    }

    async fn with<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<R> + Send + 'static,
    ) -> Outcome<R> {
        let connection = Arc::clone(&self.0);
        let work = move || work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(tokio::task::spawn_blocking(work).await??)
    }

    pub(crate) async fn put(&self, number: u64, payload: Bytes) -> Outcome<()> {
        self.with(move |connection| {
            let mut insert = connection.prepare_cached("INSERT INTO log VALUES(?, ?)")?;
            insert.execute((number as i64, &payload[..])).map(drop)
        })
        .await
    }

    pub(crate) async fn cas(&self, payload: Bytes) -> Outcome<bool> {
        let head: i64 = self
            .with(|connection| connection.query_row("SELECT version FROM head", [], |row| row.get(0)))
            .await?;
        self.with(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut update = transaction.prepare_cached("UPDATE head SET version = ? WHERE version = ?")?;
            if update.execute((head + 1, head))? == 0 {
                return Ok(false);
            }
            drop(update);
            transaction.prepare_cached("INSERT INTO log VALUES(?, ?)")?.execute((head + 1, &payload[..]))?;
            transaction.commit().map(|()| true)
        })
        .await
    }
}
