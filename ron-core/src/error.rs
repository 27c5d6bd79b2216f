//! The refusals every subsystem shares, and the macro that makes them look the same in every crate.
//!
//! A host that has matched `Busy` once has matched it everywhere: the variants are flat in each crate's error, and
//! `kind()`, `is_retryable()` and `retry_after()` answer the same questions of all of them.

use std::time::Duration;

/// Why a call through a queue, a pool or a limit came back without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// A queue or limit was full, so nothing was started. Retry after the pause.
    #[error("{what} is full")]
    Busy {
        /// The lane, pool or gate that refused.
        what: &'static str,
        /// How long the refuser expects to stay full. A lane's guess follows the rate at which it drains: 10 ms before
        /// anything was measured, at most 5 s.
        retry_after: Duration,
    },
    /// The deadline passed. The work may or may not have happened.
    #[error("{op} passed its deadline")]
    Timeout {
        /// The operation that was waited for.
        op: &'static str,
    },
    /// The subsystem is stopping. This handle will not answer again.
    #[error("shutting down")]
    Canceled,
    /// The job panicked. It was counted and logged; asking again may panic again.
    #[error("{op} panicked")]
    Panicked {
        /// The operation whose job panicked.
        op: &'static str,
    },
}

/// What a caller can conclude from an error, whichever crate it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Refused before anything started, because something was full.
    Busy,
    /// The deadline passed; the outcome is unknown.
    Timeout,
    /// The subsystem is stopping or has stopped.
    Canceled,
    /// Not able to answer yet; will be later without the caller doing anything.
    NotReady,
    /// The caller asked for something that cannot be: asking again is useless.
    Caller,
    /// A remote side broke the rules or gave up; another one may do better.
    Peer,
    /// Storage failed: full, damaged or refusing.
    Disk,
    /// Our own mistake, for example a panic. Report it.
    Bug,
}

impl ErrorKind {
    /// Whether the same call, if it is idempotent, may succeed later without anyone fixing anything: `Busy`,
    /// `Timeout`, `NotReady` and `Peer`.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, ErrorKind::Busy | ErrorKind::Timeout | ErrorKind::NotReady | ErrorKind::Peer)
    }
}

/// An error that can say what its caller should do next. Implemented through [`refusals!`](crate::refusals).
pub trait Refusal: std::error::Error {
    /// What the caller can conclude.
    fn kind(&self) -> ErrorKind;

    /// How long to wait before asking again, when the refuser knows.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

/// Gives a crate's error type the flat refusals.
///
/// The type must have the variants `Busy { what, retry_after }`, `Timeout { op }`, `Canceled` and
/// `Panicked { op }`; every other variant names its [`ErrorKind`]. Variants other than `Busy` that know when to ask again
/// are named after `retry`: `refusals!(E { .. } retry { E::Unreachable { retry_after, .. } => *retry_after })`.
///
/// ```
/// use std::time::Duration;
/// use ron_core::{CallError, ErrorKind};
///
/// #[derive(Debug, thiserror::Error)]
/// enum ShopError {
///     #[error("{what} is full")]
///     Busy { what: &'static str, retry_after: Duration },
///     #[error("{op} passed its deadline")]
///     Timeout { op: &'static str },
///     #[error("shutting down")]
///     Canceled,
///     #[error("{op} panicked")]
///     Panicked { op: &'static str },
///     #[error("no such article")]
///     NoSuchArticle,
/// }
/// ron_core::refusals!(ShopError { ShopError::NoSuchArticle => ErrorKind::Caller });
///
/// let error: ShopError = CallError::Canceled.into();
/// assert_eq!(error.kind(), ErrorKind::Canceled);
/// assert!(!error.is_retryable());
/// assert_eq!(ShopError::NoSuchArticle.kind(), ErrorKind::Caller);
/// ```
#[macro_export]
macro_rules! refusals {
    (
        $error:ident { $($pattern:pat => $kind:expr),* $(,)? }
        $(retry { $($late:pat => $after:expr),* $(,)? })?
    ) => {
        impl ::core::convert::From<$crate::CallError> for $error {
            fn from(error: $crate::CallError) -> Self {
                match error {
                    $crate::CallError::Busy { what, retry_after } => Self::Busy { what, retry_after },
                    $crate::CallError::Timeout { op } => Self::Timeout { op },
                    $crate::CallError::Panicked { op } => Self::Panicked { op },
                    _ => Self::Canceled,
                }
            }
        }

        $crate::refusals!(@questions $error { $($pattern => $kind),* } { $($($late => $after),*)? });
    };
    (@questions $error:ident { $($pattern:pat => $kind:expr),* } { $($late:pat => $after:expr),* }) => {
        impl $crate::Refusal for $error {
            fn kind(&self) -> $crate::ErrorKind {
                match self {
                    Self::Busy { .. } => $crate::ErrorKind::Busy,
                    Self::Timeout { .. } => $crate::ErrorKind::Timeout,
                    Self::Canceled => $crate::ErrorKind::Canceled,
                    Self::Panicked { .. } => $crate::ErrorKind::Bug,
                    $($pattern => $kind,)*
                }
            }

            fn retry_after(&self) -> ::core::option::Option<::core::time::Duration> {
                match self {
                    Self::Busy { retry_after, .. } => ::core::option::Option::Some(*retry_after),
                    $($late => ::core::option::Option::Some($after),)*
                    _ => ::core::option::Option::None,
                }
            }
        }

        impl $error {
            /// What the caller can conclude from this error.
            #[must_use]
            pub fn kind(&self) -> $crate::ErrorKind {
                $crate::Refusal::kind(self)
            }

            /// Whether the same call, if idempotent, may succeed later on its own.
            #[must_use]
            pub fn is_retryable(&self) -> bool {
                $crate::Refusal::kind(self).is_retryable()
            }

            /// How long to wait before asking again, when the refuser knows.
            #[must_use]
            pub fn retry_after(&self) -> ::core::option::Option<::core::time::Duration> {
                $crate::Refusal::retry_after(self)
            }
        }
    };
}

refusals!(@questions CallError {} {});
