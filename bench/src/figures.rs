//! What a process of its own measured, and how it tells.

use std::{
    collections::BTreeMap,
    fmt,
    process::{Command, Stdio},
};

use crate::measure::{Outcome, whole};

/// What was measured, by name. Travels as lines of a name and a number.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<String, f64>);

impl Figures {
    /// Not a number if it was not measured.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn set(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    /// What this program prints when it is started with these arguments.
    pub(crate) fn of_process(arguments: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let output = command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(format!("its process {} ended with {}", arguments.join(" "), output.status).into());
        }
        Self::parse(&String::from_utf8(output.stdout)?)
    }

    fn parse(text: &str) -> Outcome<Self> {
        let mut figures = Figures::default();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').ok_or_else(|| format!("no figure: {line}"))?;
            figures.set(name, value.parse()?);
        }
        Ok(figures)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name} {value}"))
    }
}

/// A figure, or that there is none.
pub(crate) fn told(value: f64, digits: usize) -> String {
    match digits {
        _ if value.is_nan() => "–".to_owned(),
        0 => whole(value),
        digits => format!("{value:.digits$}"),
    }
}
