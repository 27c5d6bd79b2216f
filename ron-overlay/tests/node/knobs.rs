//! knobs
