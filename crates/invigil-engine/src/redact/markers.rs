//! The markers that rules hang on, and the one scan for all of them.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::span::Spans;
use super::tokens::{self, TOKENS, Token};
use super::{command, names};

/// What a marker leads to.
#[derive(Clone, Copy)]
pub(super) enum Found {
    /// A secret of a known shape begins here.
    Token(&'static Token),
    /// Something that is looked at more closely: text, start and end of the marker, results.
    Shape(fn(&[u8], usize, usize, &mut Spans<'_>)),
    /// Part of a name that secrets are given to.
    Name,
    /// A program that takes secrets as arguments.
    Program,
}

/// All markers, in one automaton.
pub(super) struct Markers {
    automaton: AhoCorasick,
    meaning: Vec<Found>,
}

pub(super) static MARKERS: LazyLock<Markers> = LazyLock::new(|| {
    let mut texts: Vec<&'static str> = Vec::new();
    let mut meaning = Vec::new();
    let mut add = |text, found| {
        texts.push(text);
        meaning.push(found);
    };
    for token in TOKENS {
        add(token.prefix, Found::Token(token));
    }
    for &(text, shape) in tokens::SHAPES {
        add(text, Found::Shape(shape));
    }
    for &text in names::WORDS {
        add(text, Found::Name);
    }
    for program in command::PROGRAMS {
        add(program.name, Found::Program);
    }
    let automaton = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .kind(Some(AhoCorasickKind::DFA))
        .build(&texts)
        // Only patterns beyond any size fail. Without the automaton every secret would stay, so there is no going on.
        .expect("the markers are fixed and few");
    Markers { automaton, meaning }
});

impl Markers {
    /// Whether there is any marker at all.
    pub(super) fn any(&self, text: &[u8]) -> bool {
        self.automaton.is_match(text)
    }

    /// Every marker in the text, overlapping ones too.
    pub(super) fn all<'a>(
        &'a self,
        text: &'a [u8],
    ) -> impl Iterator<Item = (Found, usize, usize)> + 'a {
        self.automaton.find_overlapping_iter(text).map(|found| {
            let meaning = self.meaning[found.pattern().as_usize()];
            (meaning, found.start(), found.end())
        })
    }
}
