//! A running refd, and connections to it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crate::{Outcome, load::CROWD, phase::Kind};

/// A `refd run`, and what it takes to ask it.
pub(crate) struct Node {
    child: Mutex<Child>,
    program: PathBuf,
    data: PathBuf,
    settings: PathBuf,
    pub(crate) seed: String,
    admin: SocketAddr,
    token: String,
}

/// What a process uses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Bytes of it that are in memory.
    pub(crate) memory: u64,
    pub(crate) descriptors: u64,
    pub(crate) tasks: u64,
}

impl Node {
    pub(crate) fn start(home: &Path, name: &str, seed: Option<&str>) -> Outcome<Node> {
        let program = match std::env::var_os("RON_REFD") {
            Some(program) => program.into(),
            // target/release/examples/soak, and the program beside that directory.
            None => std::env::current_exe()?
                .ancestors()
                .nth(2)
                .ok_or("no directory of programs")?
                .join(format!("refd{}", std::env::consts::EXE_SUFFIX)),
        };
        let (data, settings) = (home.join(name), home.join(format!("{name}.toml")));
        std::fs::write(&settings, "")?;
        let mut command = Command::new(&program);
        command.args(["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"]).arg(&data);
        command.arg("--config").arg(&settings);
        command.args(seed.iter().flat_map(|seed| ["--seed", seed]));
        command.env("REFD_OVERLAY__TOPICS", "[\"soak\"]").env("REFD_LOG", "error");
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("{}: {error}", program.display()))?;
        let mut out = BufReader::new(child.stdout.take().ok_or("it has an output")?);
        let (mut seed, mut admin) = (None, None);
        while seed.is_none() || admin.is_none() {
            let mut line = String::new();
            if out.read_line(&mut line)? == 0 {
                return Err("the node did not start".into());
            }
            seed = seed.or(line.split_once("--seed ").map(|(_, seed)| seed.trim().to_owned()));
            let url = line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
            admin = admin.or(url.map(|(admin, _)| admin.to_owned()));
        }
        // What it says at its end needs somebody who reads it.
        thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        let (seed, admin) = (seed.ok_or("a seed")?, admin.ok_or("an address")?.parse()?);
        let token = std::fs::read_to_string(data.join("token"))?.trim().to_owned();
        let node = Node { child: Mutex::new(child), program, data, settings, seed, admin, token };
        for _ in 0..600 {
            if node.line(1)?.ask("GET", "/readyz", b"")?.is_ok() {
                return Ok(node);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err("the node did not become ready".into())
    }

    pub(crate) fn key(&self) -> String {
        self.data.join("signer").display().to_string()
    }

    pub(crate) fn refd(&self, arguments: &[&str]) -> Outcome<String> {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        if arguments.get(1) != Some(&"key") {
            command.args(["--node", &format!("http://{}", self.admin), "--data-dir"]).arg(&self.data);
        }
        let output = command.output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?.trim().to_owned()),
            false => Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    /// Says how many requests a second it may answer from now on.
    pub(crate) fn allow(&self, rate: Option<f64>) -> Outcome<()> {
        let settings = rate.map_or_else(String::new, |rate| {
            let (storage, index) = (rate * Kind::Storage.share(), rate * Kind::Index.share());
            format!("[storage]\nmax_rps = {storage:.0}\n[index]\nmax_rps = {index:.0}\n")
        });
        std::fs::write(&self.settings, settings)?;
        self.refd(&["reload"])?;
        Ok(())
    }

    /// One more entry: one of a hundred names stands for something else.
    pub(crate) fn commit(&self, number: u64) -> Outcome<()> {
        let (name, id) = (format!("soak/{}", number % 100), format!("b3:{number:064x}"));
        let proposal = self.refd(&["registry", "propose", &name, "--artifact", &id])?;
        self.refd(&["registry", "approve", &proposal, "--key", &self.key()])?;
        Ok(())
    }

    /// A connection, from an address of its own for every 64 callers.
    pub(crate) fn line(&self, caller: usize) -> Outcome<Line> {
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 1, u8::try_from(1 + caller / 64)?), 0));
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&from.into())?;
        socket.connect(&self.admin.into())?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let stream = TcpStream::from(socket);
        let (admin, token) = (self.admin, self.token.clone());
        Ok(Line {
            reader: BufReader::with_capacity(1 << 16, stream.try_clone()?),
            stream,
            admin,
            token,
            is_over: false,
        })
    }

    fn process(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// How many bytes of it are in memory.
    pub(crate) fn memory(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process()))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse()?;
        Ok(kib << 10)
    }

    pub(crate) fn usage(&self) -> Outcome<Usage> {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.process()))?.count() as u64;
        let metrics = String::from_utf8(self.line(CROWD)?.ask("GET", "/metrics", b"")?.body)?;
        let sum = |name: &str| -> u64 {
            let lines = metrics.lines().filter(|line| !line.starts_with('#') && line.contains(name));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>() as u64
        };
        let tasks = sum("_tasks_spawned_total{").saturating_sub(sum("_tasks_ended_total{"));
        Ok(Usage { memory: self.memory()?, descriptors, tasks })
    }

    pub(crate) fn stop(&self) -> Outcome<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the node ended with {status}").into()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A connection that is kept.
pub(crate) struct Line {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    admin: SocketAddr,
    token: String,
    /// Whether the node closes it after its last answer.
    pub(crate) is_over: bool,
}

impl Line {
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Outcome<Answer> {
        let (admin, token, length) = (self.admin, &self.token, body.len());
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {admin}\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend(body);
        self.stream.write_all(&request)?;
        let (mut line, mut length, mut says_when) = (String::new(), 0, false);
        self.reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).ok_or("the connection was closed")?.parse()?;
        loop {
            line.clear();
            self.reader.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse::<usize>()?;
                }
                Some((name, value)) => {
                    says_when |= name.eq_ignore_ascii_case("retry-after");
                    self.is_over |= name.eq_ignore_ascii_case("connection") && value.contains("close");
                }
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        Ok(Answer { status, body, says_when })
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// Whether it says when to come again.
    pub(crate) says_when: bool,
}

impl Answer {
    pub(crate) fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether it is a problem that says by a code what it is.
    pub(crate) fn has_code(&self) -> bool {
        serde_json::from_slice::<serde_json::Value>(&self.body).is_ok_and(|words| words["code"].is_string())
    }

    /// What it is, for people.
    pub(crate) fn words(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}
