//! The timeline as a picture: one lane for each layer, with the numbers in a table below it.

use std::time::Duration;

use invigil_audit::{TimelineBin, TimelineDoc};

use super::html::Html;
use crate::ui;

/// The height of a lane, in the units of the picture. A bin is one unit wide.
const HEIGHT: f64 = 40.0;

struct Lane {
    name: &'static str,
    of: fn(&TimelineBin) -> u64,
}

const LANES: [Lane; 7] = [
    Lane {
        name: "kernel",
        of: |bin| bin.kernel,
    },
    Lane {
        name: "runtime",
        of: |bin| bin.runtime,
    },
    Lane {
        name: "sdk",
        of: |bin| bin.sdk,
    },
    Lane {
        name: "client",
        of: |bin| bin.client,
    },
    Lane {
        name: "user",
        of: |bin| bin.user,
    },
    Lane {
        name: "refused",
        of: |bin| bin.refused,
    },
    Lane {
        name: "asked",
        of: |bin| bin.asked,
    },
];

pub(super) fn timeline(html: &mut Html, timeline: &TimelineDoc) {
    for lane in &LANES {
        let total: u64 = timeline.bins.iter().map(lane.of).sum();
        if total > 0 {
            draw(html, lane, timeline, total);
        }
    }
    html.raw("<div class=\"axis\">");
    for quarter in 0..=4 {
        let end = timeline.bins.len() as u64 * timeline.bin_ns;
        html.raw("<span>")
            .text(&time(end / 4 * quarter))
            .raw("</span>");
    }
    html.raw("</div>\n<details><summary>The same in numbers</summary>\n");
    let headings = [
        "from", "first", "kernel", "runtime", "sdk", "client", "user", "refused", "asked",
    ];
    let bins = timeline.bins.iter().enumerate();
    let full = bins.filter(|(_, bin)| bin.records() > 0);
    html.table(&headings, usize::MAX, full, |html, (at, bin)| {
        html.cell("from", &time(at as u64 * timeline.bin_ns));
        html.cell("first", &bin.first.unwrap_or_default().to_string());
        for lane in &LANES {
            html.cell(lane.name, &(lane.of)(bin).to_string());
        }
    });
    html.raw("</details>\n");
}

/// Heights go by orders of magnitude: a burst must not hide the rest.
fn draw(html: &mut Html, lane: &Lane, timeline: &TimelineDoc, total: u64) {
    let weight = |count: u64| ((count + 1) as f64).log2();
    let most = timeline.bins.iter().map(lane.of).max().unwrap_or(0);
    html.raw("<figure><figcaption>").raw(lane.name).raw(" ");
    html.number(total)
        .raw(", at most ")
        .number(most)
        .raw(" in ");
    html.text(&time(timeline.bin_ns)).raw("</figcaption>");
    html.raw("<svg role=\"img\" preserveAspectRatio=\"none\" viewBox=\"0 0 ");
    html.number(timeline.bins.len() as u64).raw(" 40\"><title>");
    html.raw(lane.name).raw(" over time</title>\n");
    for (at, bin) in timeline.bins.iter().enumerate() {
        let count = (lane.of)(bin);
        if count == 0 {
            continue;
        }
        let height = (HEIGHT * weight(count) / weight(most)).max(2.0);
        html.raw("<rect").raw(" class=\"").raw(lane.name).raw("\"");
        html.attribute("x", &at.to_string()).raw(" width=\"1\"");
        html.attribute("y", &format!("{:.1}", HEIGHT - height));
        html.attribute("height", &format!("{height:.1}"))
            .raw("><title>");
        let from = time(at as u64 * timeline.bin_ns);
        let first = bin.first.unwrap_or_default();
        html.text(&format!(
            "{count} {} from {from} on, first record {first}",
            lane.name
        ));
        html.raw("</title></rect>\n");
    }
    html.raw("</svg></figure>\n");
}

/// A span of time at a glance.
fn time(nanos: u64) -> String {
    match nanos {
        0 => "0".to_owned(),
        1..1_000_000 => format!("{:.0} µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => ui::duration(Duration::from_nanos(nanos)),
    }
}
