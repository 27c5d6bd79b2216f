//! Where connections come from: TCP ports and Unix sockets.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::{
        fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixStream as BlockingUnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, UnixListener};

use super::{HttpError, wire::Stream};

/// Connections the kernel holds for us between two accepts. A burst of clients after a restart fits.
const BACKLOG: u32 = 4096;

/// A peer that vanished without a word is noticed after this and a few probes.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// An address to listen on: a TCP address, or the path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// TCP. Port 0 takes a free one, see [`Server::local_addrs`](super::Server::local_addrs).
    Tcp(SocketAddr),
    /// A Unix socket, for this user only (mode 0600). Its directory is made (0700) if it is missing.
    Unix(PathBuf),
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Listen::Tcp(address)
    }
}

impl From<PathBuf> for Listen {
    fn from(path: PathBuf) -> Self {
        Listen::Unix(path)
    }
}

impl From<&Path> for Listen {
    fn from(path: &Path) -> Self {
        Listen::Unix(path.to_owned())
    }
}

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    pub(super) fn open(listen: &Listen) -> Result<Self, HttpError> {
        match listen {
            Listen::Tcp(address) => {
                let bind = || {
                    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                    // After a restart the port still has the old connections in their last wait.
                    socket.set_reuseaddr(true)?;
                    socket.bind(*address)?;
                    socket.listen(BACKLOG)
                };
                let address = *address;
                bind().map(Listener::Tcp).map_err(|source| HttpError::Bind { address, source })
            }
            Listen::Unix(path) => open_unix(path),
        }
    }

    /// What it listens on, with the port it got.
    pub(super) fn local(&self) -> io::Result<Listen> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Listener::Unix(_, file) => Ok(Listen::Unix(file.path.clone())),
        }
    }

    /// The next connection and the address of its peer. Dropping the future loses none.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<SocketAddr>)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Only tuning: a connection that refuses it works all the same.
                let _ = stream.set_nodelay(true);
                let _ = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE));
                Ok((Box::new(stream), Some(peer)))
            }
            Listener::Unix(listener, _) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

/// The file of a Unix socket, removed with its listener unless somebody else has put theirs there.
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_unix(path: &Path) -> Result<Listener, HttpError> {
    let failed = |source| HttpError::Socket { path: path.to_owned(), source };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    remove_stale(path)?;
    // Bound under another name and moved when its mode is right: nobody can connect in between.
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    remove_stale(&fresh)?;
    let listener = UnixListener::bind(&fresh).map_err(failed)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let inode = fs::symlink_metadata(&fresh).map_err(failed)?.ino();
    fs::rename(&fresh, path).map_err(failed)?;
    Ok(Listener::Unix(listener, SocketFile { path: path.to_owned(), inode }))
}

/// Removes the socket of a process that is gone; anything else in its place is left alone and refused.
fn remove_stale(path: &Path) -> Result<(), HttpError> {
    let failed = |source| HttpError::Socket { path: path.to_owned(), source };
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    if !found.file_type().is_socket() {
        return Err(HttpError::NotASocket { path: path.to_owned() });
    }
    match BlockingUnixStream::connect(path) {
        Ok(_) => Err(HttpError::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(source) => Err(failed(source)),
    }
}
