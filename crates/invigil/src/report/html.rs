//! Writes HTML. Text of others enters through [`Html::text`] and [`Html::attribute`] alone, and comes out as text.

use crate::ui;

/// A single text is not longer than this, in characters.
const LONGEST: usize = 2000;

/// So much of a foldable text is always shown.
const BEGINNING: usize = 160;

/// A page in the making.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup of our own: never anything that was read.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// A number, which is no markup.
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.0.push_str(&number.to_string());
        self
    }

    /// Any text, as text: what could hide or turn around its neighbours is shown as an escape.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.escape(&ui::shorten(&ui::harmless(text), LONGEST))
    }

    /// The same for text of several lines.
    pub(super) fn lines(&mut self, text: &str) -> &mut Self {
        self.escape(&ui::harmless_lines(text))
    }

    /// ` name="value"`.
    pub(super) fn attribute(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    fn escape(&mut self, text: &str) -> &mut Self {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    /// A cell of a table, under its heading.
    pub(super) fn cell(&mut self, heading: &'static str, text: &str) -> &mut Self {
        self.raw("<td data-label=\"").raw(heading).raw("\">");
        self.text(text).raw("</td>")
    }

    /// The same, in the colour of a class of the page's style.
    pub(super) fn coloured(
        &mut self,
        heading: &'static str,
        class: &'static str,
        text: &str,
    ) -> &mut Self {
        self.raw("<td data-label=\"").raw(heading);
        self.raw("\" class=\"").raw(class).raw("\">");
        self.text(text).raw("</td>")
    }

    /// A text of which only the beginning is in the way. The rest is a click away, and found by a search.
    pub(super) fn foldable(&mut self, text: &str) -> &mut Self {
        let beginning = ui::shorten(text, BEGINNING);
        if beginning == text {
            return self.text(text);
        }
        self.raw("<details><summary>").text(&beginning);
        self.raw("</summary>").text(text).raw("</details>")
    }

    /// A table whose rows take at most so many bytes. How many were left out.
    pub(super) fn table<T>(
        &mut self,
        headings: &[&'static str],
        most: usize,
        rows: impl Iterator<Item = T>,
        mut row: impl FnMut(&mut Html, T),
    ) -> u64 {
        self.raw("<table><thead><tr>");
        for heading in headings {
            self.raw("<th scope=\"col\">").raw(heading).raw("</th>");
        }
        self.raw("</tr></thead><tbody>\n");
        let (start, mut left_out) = (self.0.len(), 0);
        for item in rows {
            if self.0.len() - start > most {
                left_out += 1;
                continue;
            }
            self.raw("<tr>");
            row(self, item);
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table>\n");
        left_out
    }

    /// How many bytes there are so far.
    pub(super) fn size(&self) -> usize {
        self.0.len()
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_becomes_markup() {
        let mut html = Html::default();
        html.raw("<p").attribute("title", "\"><script>'&").raw(">");
        html.text("<img src=x onerror=alert(1)>\u{202e}\u{1b}[2J");
        assert_eq!(
            html.into_string(),
            "<p title=\"&quot;&gt;&lt;script&gt;&#39;&amp;\">&lt;img src=x onerror=alert(1)&gt;\\u{202e}\\u{1b}[2J"
        );
    }

    #[test]
    fn a_table_has_an_end() {
        let mut html = Html::default();
        let left = html.table(&["n"], 1000, 0..1000, |html, n| {
            html.cell("n", &n.to_string());
        });
        let text = html.into_string();
        let shown = text.matches("<td").count() as u64;
        assert_eq!(shown + left, 1000);
        assert!(shown > 10 && text.len() < 1500);
    }
}
