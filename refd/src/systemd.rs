//! What a service manager is told, if there is one that listens: `sd_notify`, which is a datagram to a socket.

use std::{env, ffi::OsStr, io, os::unix::net::UnixDatagram, time::Duration};

/// The socket of the service manager.
#[derive(Debug)]
pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    /// How often it wants to hear that the process lives, halved.
    every: Option<Duration>,
}

impl Notify {
    /// As the environment says.
    pub(crate) fn from_env() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, ?name, "the service manager cannot be told anything");
                None
            }
        });
        let is_ours = env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let micros = env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse::<u64>().ok());
        let every = micros.filter(|micros| is_ours && *micros > 0 && socket.is_some());
        Notify { socket, every: every.map(|micros| Duration::from_micros(micros) / 2) }
    }

    /// Says it, to whoever listens.
    pub(crate) fn say(&self, state: &str) {
        if let Some(socket) = &self.socket {
            // Nobody to tell that nobody could be told.
            let _ = socket.send(state.as_bytes());
        }
    }

    /// Until the manager wants to hear again that the process lives.
    pub(crate) async fn due(&self) {
        match self.every {
            Some(every) => tokio::time::sleep(every).await,
            None => std::future::pending().await,
        }
    }
}

/// A path, or a name without a file behind `@`.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    // The manager may be slow, and the node is not to wait for it.
    socket.set_nonblocking(true)?;
    #[cfg(target_os = "linux")]
    {
        use std::os::{linux::net::SocketAddrExt as _, unix::ffi::OsStrExt as _};
        if let Some(name) = name.as_bytes().strip_prefix(b"@") {
            socket.connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?)?;
            return Ok(socket);
        }
    }
    socket.connect(name)?;
    Ok(socket)
}
