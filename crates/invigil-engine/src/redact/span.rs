//! Places in a text that hold secrets, and placeholders that are there already.

use std::ops::Range;

/// How a placeholder begins.
const OPEN: &[u8] = b"<redacted:";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) rule: &'static str,
}

/// The secrets of one text. What is a placeholder already is never part of one unless as a whole.
pub(super) struct Spans<'t> {
    text: &'t [u8],
    placeholders: Vec<Range<usize>>,
    found: Vec<Span>,
}

impl<'t> Spans<'t> {
    pub(super) fn new(text: &'t [u8]) -> Self {
        let starts = memchr::memmem::find_iter(text, OPEN);
        let placeholders = starts
            .filter_map(|start| placeholder_at(text, start).map(|end| start..end))
            .collect();
        Spans {
            text,
            placeholders,
            found: Vec::new(),
        }
    }

    /// Whether a secret was found that `at` is part of.
    pub(super) fn cover(&self, at: usize) -> bool {
        self.found
            .last()
            .is_some_and(|span| (span.start..span.end).contains(&at))
    }

    pub(super) fn add(&mut self, start: usize, end: usize, rule: &'static str) {
        let start = self.around(start).map_or(start, |known| known.end);
        let end = self.around(end).map_or(end, |known| known.start);
        // Behind the placeholders that it begins with.
        let first = self
            .placeholders
            .partition_point(|known| known.start < start);
        let mut rest = start;
        for known in &self.placeholders[first..] {
            if known.start != rest {
                break;
            }
            rest = known.end;
        }
        if start < end && rest < end {
            self.found.push(Span { start, end, rule });
        }
    }

    /// The placeholder that `at` is inside of, and not at either end.
    fn around(&self, at: usize) -> Option<&Range<usize>> {
        let behind = self.placeholders.partition_point(|known| known.end <= at);
        let known = self.placeholders.get(behind)?;
        (known.start < at).then_some(known)
    }

    /// In order, without overlaps; where two meet, the longer one names the rule.
    pub(super) fn merged(mut self) -> Vec<Span> {
        debug_assert!(self.found.iter().all(|span| span.end <= self.text.len()));
        self.found
            .sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        let mut merged: Vec<Span> = Vec::new();
        for span in self.found {
            match merged.last_mut() {
                Some(last) if span.start < last.end => {
                    if span.end - span.start > last.end - last.start {
                        last.rule = span.rule;
                    }
                    last.end = last.end.max(span.end);
                }
                _ => merged.push(span),
            }
        }
        merged
    }
}

/// Where the placeholder that begins at `start` ends, if there is one.
fn placeholder_at(text: &[u8], start: usize) -> Option<usize> {
    let rest = text.get(start..)?.strip_prefix(OPEN)?;
    let rule = rest
        .iter()
        .take(32)
        .position(|&byte| !(byte.is_ascii_lowercase() || byte == b'_'))?;
    let digits = rest.get(rule..)?.strip_prefix(b":")?;
    let hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let whole = digits.len() > 8 && digits[..8].iter().all(hex) && digits[8] == b'>';
    (rule > 0 && whole).then_some(start + OPEN.len() + rule + 1 + 9)
}
