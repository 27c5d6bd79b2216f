//! `refd config`: what is set, by what, and whether that is in order. Asks no node.

use std::{
    error::Error,
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Subcommand;
use serde_json::json;

use crate::config::{
    Flags, NodePreset,
    layers::{self, Layered},
};

/// What is asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Says whether settings are in order, as a start would see them. Exits with 8 if they are not.
    Check {
        /// The file with settings; without it, only the variables and flags are looked at.
        #[arg(value_name = "FILE")]
        config: Option<PathBuf>,
        /// Answers as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        flags: Flags,
    },
    /// Prints all settings as a file, with the defaults filled in.
    Print {
        /// The file with settings; without it, the defaults, the variables and the flags are printed.
        #[arg(value_name = "FILE")]
        config: Option<PathBuf>,
        /// Says behind each what set it: a default, a preset, the file, a variable, a flag.
        #[arg(long)]
        origin: bool,
        /// One JSON value a line, with the key, the value and what set it.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        flags: Flags,
    },
    /// Prints a file to begin with: every key, what it is, and its default.
    Template {
        /// With the defaults of this kind of node.
        #[arg(long, default_value = "dev")]
        preset: NodePreset,
    },
}

/// Does it.
pub(crate) fn perform(request: Request) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    match request {
        Request::Check { config, json, flags } => {
            let layered = Layered::load(config.as_deref(), layers::variables(), flags)?;
            layered.config.check()?;
            let what = config.as_deref().map_or("settings".into(), |path| path.display().to_string());
            match json {
                true => writeln!(out, "{}", json!({"config": config, "in_order": true}))?,
                false => writeln!(out, "{what}: in order")?,
            }
        }
        Request::Print { config, origin, json, flags } => {
            let mut layered = Layered::load(config.as_deref(), layers::variables(), flags)?;
            layered.config.check()?;
            layered.config.node.data_dir = layered.config.data_dir().ok();
            let text = if json { layered.to_json() } else { layered.to_toml(origin) };
            out.write_all(text.as_bytes())?;
        }
        Request::Template { preset } => {
            let set = match preset {
                NodePreset::Dev => Vec::new(),
                preset => vec![("node", "preset", format!("{:?}", preset.name()))],
            };
            out.write_all(layers::template(preset, &set).as_bytes())?;
        }
    }
    Ok(())
}
