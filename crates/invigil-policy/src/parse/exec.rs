//! `[programs]` and `[[exec]]`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::{File, decision, reason, required, tables, too_big, unlike_example};
use crate::command::commands_of_line;
use crate::error::Flaw;
use crate::exec::{Arg, Args, ExecIndex, ExecRule, Options, Program};
use crate::stratum::Part;
use crate::syntax::{Table, Text, Value};
use crate::words::line_exec;
use crate::{Rule, Section};

impl File<'_> {
    pub(super) fn programs(&self, top: Table<'_>) -> Result<Part<ExecRule>, Flaw> {
        let mut part = Part::empty();
        if let Some(value) = top.get("programs") {
            let table = self.section(value, "[programs]", "\"curl\"")?;
            for (entry, verdict) in self.lists(table, "\"curl\"")? {
                let program = Program::parse(&entry.rule, self.places)?;
                part.patterns.push(ExecRule {
                    verdict,
                    program,
                    args: None,
                });
                part.rules
                    .push(Arc::new(self.listed(Section::Programs, &entry, verdict)));
            }
            part.default = self.default(table, Some(Section::Programs))?;
        }
        let mut seen = HashMap::new();
        for value in tables(top, "exec", "[[exec]]")? {
            let (exec, rule, span) = self.exec(value)?;
            if let Some(first) = seen.insert(rule.text.clone(), span.clone()) {
                return Err(self.twice(&rule.text, span, first));
            }
            part.patterns.push(exec);
            part.rules.push(Arc::new(rule));
        }
        Ok(part)
    }

    fn exec(&self, value: Value<'_>) -> Result<(ExecRule, Rule, Range<usize>), Flaw> {
        let keys = [
            "program", "args", "options", "decision", "reason", "matches", "misses",
        ];
        let table = value.table("[[exec]]")?.only(&keys)?;
        let name = required(table, "program", &value, "program = \"git\"")?;
        let program = Program::parse(&name, self.places)?;
        let verdict = decision(table, &value)?;
        let mut text = name.text.to_owned();
        let args = match table.get("args") {
            Some(args) => {
                let words = args.texts("args = [\"push\", \"..\"]")?;
                let patterns = words.iter().map(Arg::parse).collect::<Result<_, _>>()?;
                for word in &words {
                    text = format!("{text} {}", word.text);
                }
                let options = self.options(table, &program)?;
                Some(Args { patterns, options })
            }
            None => None,
        };
        if let Some(options) = table.get("options").filter(|_| args.is_none()) {
            let message = "`options` without `args` does nothing";
            let help = "write args = [\"push\", \"..\"] for the subcommand behind the options, or remove the line";
            return Err(Flaw::new(
                options.span(),
                message,
                "nothing reads this",
                help,
            ));
        }
        let exec = ExecRule {
            verdict,
            program,
            args,
        };
        let rule = Rule {
            reason: reason(table)?,
            ..self.rule(Some(Section::Programs), verdict, &name.span, text)
        };
        self.check_lines(table, &exec, &rule.text)?;
        Ok((exec, rule, name.span))
    }

    fn options(&self, table: Table<'_>, program: &Program) -> Result<Options, Flaw> {
        let Some(value) = table.get("options") else {
            return Ok(Options::of(program));
        };
        let words = value.texts("options = [\"-C\", \"--config\"]")?;
        let good = |word: &&Text<'_>| {
            word.text.len() > 1 && (word.text.starts_with('-') || word.text.ends_with('*'))
        };
        if let Some(bad) = words.iter().find(|word| !good(word)) {
            let message = format!("`{}` is not an option", bad.text);
            let help = "list the options whose value is the next word, like \"-C\", and words that stand alone, like \"+*\"";
            return Err(Flaw::new(bad.span.clone(), message, "not an option", help));
        }
        Ok(Options::Known(
            words.iter().map(|word| word.text.to_owned()).collect(),
        ))
    }

    /// A rule must do what its examples say.
    fn check_lines(&self, table: Table<'_>, rule: &ExecRule, text: &str) -> Result<(), Flaw> {
        for (key, wanted) in [("matches", true), ("misses", false)] {
            let Some(value) = table.get(key) else {
                continue;
            };
            for line in value.texts(&format!("{key} = [\"git push origin main\"]"))? {
                let commands = commands_of_line(line.text);
                if commands.is_empty() {
                    let help = "write a command as one would type it: \"git push origin main\"";
                    return Err(Flaw::new(
                        line.span,
                        "an example without a command",
                        "nothing to match",
                        help,
                    ));
                }
                let index = ExecIndex::new(vec![rule.clone()], self.places)
                    .map_err(|error| too_big(&line.span, &error))?;
                let found = commands.iter().any(|words| {
                    line_exec(words, self.places, |exec| index.strictest(exec)).is_some()
                });
                if found != wanted {
                    return Err(unlike_example(&line, text, wanted));
                }
            }
        }
        Ok(())
    }
}
