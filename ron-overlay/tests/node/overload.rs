//! overload
