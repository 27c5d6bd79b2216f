//! Which node a command asks, with what token, and for how long.

use std::{error::Error, path::PathBuf, time::Duration};

use bytes::Bytes;
use clap::Args;
use ron_core::Deadline;
use ron_storage::client::Client;

use super::{Ends, moving::TRANSFER_MAX};
use crate::{
    ask::Node,
    config::{Config, Flags},
};

/// Which node is asked, and how.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The node, as the URL of its admin listener [default: where this machine's node listens].
    #[arg(long, value_name = "URL")]
    node: Option<String>,
    /// The file with the node's token [default: $REFD_TOKEN_FILE, or `token` in the data directory].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The data directory of the node on this machine, for its token.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The settings of the node on this machine, to find it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Seconds that the node has for an answer; transfers only for their beginning.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Answers as JSON, one value on a line.
    #[arg(long)]
    json: bool,
}

impl Target {
    /// Whether answers are for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::after(Duration::from_secs(self.timeout))
    }

    pub(crate) fn client(&self) -> Result<Client, Box<dyn Error>> {
        let (node, token) = self.node()?;
        let client = Client::builder(node);
        Ok(match token {
            Some(token) => client.token(token).build()?,
            None => client.build()?,
        })
    }

    /// The log of the node.
    pub(crate) fn registry(&self) -> Result<ron_registry::client::Client, Box<dyn Error>> {
        let (node, token) = self.node()?;
        let client = ron_registry::client::Client::new(&format!("{}/registry", node.trim_end_matches('/')))?;
        Ok(match token {
            Some(token) => client.token(token),
            None => client,
        })
    }

    /// What it may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// For routes that have no client of their own.
    pub(crate) fn node_asked(&self) -> Result<Node, Box<dyn Error>> {
        let (node, token) = self.node()?;
        Ok(Node::new(&node, token)?)
    }

    /// One request, and its whole answer.
    pub(crate) async fn ask(
        &self,
        method: &'static str,
        path: &str,
        body: Bytes,
    ) -> Result<serde_json::Value, Box<dyn Error>> {
        Ok(self.node_asked()?.ask(method, path, body, self.deadline()).await?)
    }

    /// Asks for something that takes as long as reading everything does.
    pub(super) async fn long(&self, path: &str) -> Result<serde_json::Value, Box<dyn Error>> {
        Ok(self.node_asked()?.ask("POST", path, Bytes::new(), Deadline::after(TRANSFER_MAX)).await?)
    }

    /// The index of the node.
    pub(crate) fn index(&self) -> Result<ron_index::client::Client, Box<dyn Error>> {
        let (node, _) = self.node()?;
        Ok(ron_index::client::Client::new(&format!("{}/index", node.trim_end_matches('/')))?)
    }

    /// Where the node is, and its token if there is one here.
    fn node(&self) -> Result<(String, Option<String>), Box<dyn Error>> {
        let flags = Flags::in_dir(self.data_dir.clone());
        let config = Config::load(self.config.as_deref(), crate::config::layers::variables(), flags)?;
        let node = self.node.clone().unwrap_or_else(|| format!("http://{}", config.admin.listen));
        if node.starts_with("https://") {
            let words = format!(
                "--node {node}: a node speaks plain http only; for TLS ask through a proxy or a tunnel here"
            );
            return Err(Ends::wrong(words).into());
        }
        if !node.starts_with("http://") {
            let words =
                format!("--node {node:?} is not the address of a node: it is like http://127.0.0.1:4711");
            return Err(Ends::wrong(words).into());
        }
        let named = || std::env::var_os("REFD_TOKEN_FILE").map(PathBuf::from);
        let (path, is_asked_for) = match self.token_file.clone().or_else(named) {
            Some(path) => (path, true),
            None => (config.token_file()?, false),
        };
        match std::fs::read_to_string(&path) {
            Ok(token) => Ok((node, Some(token.trim().to_owned()))),
            // Whoever only reads needs none, and is told by the node if that was wrong.
            Err(_) if !is_asked_for => Ok((node, None)),
            Err(error) => Err(format!("{}: {error}", path.display()).into()),
        }
    }
}
