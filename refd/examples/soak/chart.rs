//! What was seen, drawn against time.

use std::fmt::Write as _;

use crate::{
    mib,
    phase::{Phase, Sample},
};

/// One panel for each figure, one colour for each phase.
pub(crate) fn svg(phases: &[&Phase]) -> String {
    type Figure = (&'static str, fn(&Sample) -> f64);
    const FIGURES: [Figure; 6] = [
        ("MiB of memory", |sample| mib(sample.usage.memory)),
        ("MiB of the other node", |sample| mib(sample.beside)),
        ("descriptors", |sample| sample.usage.descriptors as f64),
        ("tasks", |sample| sample.usage.tasks as f64),
        ("answered a second", |sample| sample.answered),
        ("p99, ms", |sample| sample.p99_ms),
    ];
    const STYLE: &str = "text { font: 11px system-ui, sans-serif; fill: #24292f } .axis { stroke: #8c959f; fill: none } \
        .p0 { stroke: #0969da; fill: none } .p1 { stroke: #cf222e; fill: none } \
        @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .p0 { stroke: #58a6ff } .p1 { stroke: #ff7b72 } }";
    let (width, height, left, top) = (720.0, 110.0, 60.0, 24.0);
    let whole: f64 = phases.iter().map(|phase| phase.took.as_secs_f64()).sum();
    let mut svg = String::new();
    for (at, (name, figure)) in FIGURES.iter().enumerate() {
        let base = at as f64 * (height + 30.0) + top;
        let all = phases.iter().flat_map(|phase| phase.samples.iter().map(figure));
        let most = all.fold(1e-9, f64::max) * 1.1;
        let _ = write!(
            svg,
            "<text x='{left}' y='{:.0}'>{name}, 0 to {most:.0}</text><path class='axis' d='M{left},{base:.0} v{height} h{width}'/>",
            base - 6.0
        );
        let mut from = 0.0;
        for (number, phase) in phases.iter().enumerate() {
            let points: Vec<String> = phase
                .samples
                .iter()
                .map(|sample| {
                    let x = left + (from + sample.at) / whole * width;
                    format!("{x:.1},{:.1}", base + height * (1.0 - figure(sample) / most))
                })
                .collect();
            let _ = write!(svg, "<polyline class='p{number}' points='{}'/>", points.join(" "));
            from += phase.took.as_secs_f64();
        }
    }
    let total = FIGURES.len() as f64 * (height + 30.0) + 20.0;
    let names: Vec<String> = phases
        .iter()
        .zip(["blue", "red"])
        .map(|(phase, colour)| {
            format!("{colour}: {} for {:.0} min", phase.name, phase.took.as_secs_f64() / 60.0)
        })
        .collect();
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {total}' width='{0}' height='{total}'><style>{STYLE}</style>{svg}<text x='{left}' y='{1:.0}'>{2}</text></svg>\n",
        width + left + 20.0,
        total - 6.0,
        names.join("; ")
    )
}
