//! An index through its handle and its routes.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests are not an API")]

mod adapters;
mod breakers;
mod caching;
mod contract;
mod fairness;
mod hedging;
mod knobs;
mod routes;
mod specification;
mod world;
