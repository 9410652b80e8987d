//! What is wrong with a policy file, where, and what to write instead.

use std::fmt;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use crate::Source;

/// A policy file that cannot be used. As a `miette` diagnostic it shows the line.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.message)]
pub struct PolicyError(Box<Details>);

#[derive(Debug, Clone)]
struct Details {
    message: String,
    label: String,
    help: String,
    span: Range<usize>,
    line: usize,
    column: usize,
    file: String,
    source: NamedSource<String>,
}

impl PolicyError {
    /// The name of the file.
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// The line, from 1.
    pub fn line(&self) -> usize {
        self.0.line
    }

    /// The column in characters, from 1.
    pub fn column(&self) -> usize {
        self.0.column
    }

    /// What to write instead.
    pub fn help(&self) -> &str {
        &self.0.help
    }

    /// Everything for a person: the mistake, its line, and what to write instead. Several lines of plain text.
    pub fn report(&self) -> String {
        let details = &*self.0;
        let text = details.source.inner();
        let line = text.lines().nth(details.line - 1).unwrap_or_default();
        let rest_of_line = line.chars().count() + 1 - details.column.min(line.chars().count());
        let wide = text.get(details.span.clone()).unwrap_or_default();
        let wide = wide.lines().next().unwrap_or_default().chars().count();
        let marks = "^".repeat(wide.clamp(1, rest_of_line.max(1)));
        // A tab in front must be as wide below as it is above.
        let indent: String = line
            .chars()
            .take(details.column - 1)
            .map(|c| if c == '\t' { c } else { ' ' })
            .collect();
        let gutter = " ".repeat(details.line.to_string().len());
        let help = details.help.replace('\n', &format!("\n{gutter}         "));
        format!(
            "{message}\n{gutter}--> {file}:{number}:{column}\n{gutter} |\n{number} | {line}\n{gutter} | {indent}{marks} {label}\n\
             {gutter} = help: {help}\n",
            message = details.message,
            file = details.file,
            number = details.line,
            column = details.column,
            label = details.label,
        )
    }

    pub(crate) fn at(source: &Source, flaw: Flaw) -> Self {
        let (line, column) = place(&source.text, flaw.span.start);
        PolicyError(Box::new(Details {
            message: flaw.message,
            label: flaw.label,
            help: flaw.help,
            span: flaw.span,
            line,
            column,
            file: source.name.clone(),
            source: NamedSource::new(&source.name, source.text.clone()).with_language("TOML"),
        }))
    }
}

impl Diagnostic for PolicyError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(&self.0.help))
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.0.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let label = LabeledSpan::new_with_span(Some(self.0.label.clone()), self.0.span.clone());
        Some(Box::new(std::iter::once(label)))
    }
}

/// A mistake before it is known in which file it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) span: Range<usize>,
    /// What is wrong.
    pub(crate) message: String,
    /// What stands under the place.
    pub(crate) label: String,
    /// What to write instead.
    pub(crate) help: String,
}

impl Flaw {
    pub(crate) fn new(
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Flaw {
            span,
            message: message.into(),
            label: label.into(),
            help: help.into(),
        }
    }
}

/// Line and column, both from 1; the column counts characters.
pub(crate) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(offset)];
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[begin..].chars().count() + 1)
}
