//! Command lines as people write them, for the examples in rules and for `explain`.
//!
//! Enforcement never reads command lines: it judges what the kernel is about to load. Here a line is taken apart as far
//! as its text shows what would be loaded; what only a running shell knows (a variable, a file) stays as it is.

/// The commands that a line would run, outermost first: `env A=1 sh -c 'git push'` is `env …`, `sh …` and `git push`.
pub(crate) fn commands_of_line(line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for words in simple_commands(line) {
        add(words, &mut found, 0);
    }
    found
}

/// The commands that an argument vector would run, outermost first.
pub(crate) fn commands_of_words(words: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    add(words.to_vec(), &mut found, 0);
    found
}

/// Nobody nests wrappers deeper than this by hand.
const DEEPEST: usize = 16;

fn add(words: Vec<String>, found: &mut Vec<Vec<String>>, depth: usize) {
    let Some(program) = words.first() else { return };
    let name = program.rsplit('/').next().unwrap_or(program).to_owned();
    let inner = match depth {
        DEEPEST.. => Vec::new(),
        _ => wrapped(&name, &words[1..]),
    };
    found.push(words);
    for words in inner {
        add(words, found, depth + 1);
    }
}

/// What a program that runs others would run.
fn wrapped(name: &str, args: &[String]) -> Vec<Vec<String>> {
    let behind = |valued: &[&str], skip: usize| {
        let rest: Vec<String> = behind_options(args, valued)
            .iter()
            .skip(skip)
            .cloned()
            .collect();
        vec![rest]
    };
    match name {
        "env" => vec![
            behind_options(args, &["-u", "--unset", "-C", "--chdir"])
                .iter()
                .skip_while(|word| is_assignment(word))
                .cloned()
                .collect(),
        ],
        "command" | "exec" | "nohup" | "setsid" | "time" | "builtin" => {
            behind(&["-a", "-o", "-f"], 0)
        }
        "nice" => behind(&["-n", "--adjustment"], 0),
        "ionice" => behind(&["-c", "-n"], 0),
        "stdbuf" => behind(&["-i", "-o", "-e"], 0),
        "xargs" => behind(&["-I", "-n", "-P", "-L", "-d", "-a", "-s", "-E"], 0),
        "sudo" | "doas" => behind(&["-u", "-g", "-h", "-p", "-C", "-T"], 0),
        "timeout" => behind(&["-s", "--signal", "-k", "--kill-after"], 1),
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "ash" => {
            let flag = |word: &&String| {
                word.starts_with('-') && !word.starts_with("--") && word.contains('c')
            };
            let at = args
                .iter()
                .take_while(|word| word.starts_with(['-', '+']))
                .position(|word| flag(&word));
            match at.and_then(|at| args[at..].iter().find(|word| !word.starts_with('-'))) {
                Some(script) => simple_commands(script),
                None => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

fn behind_options<'a>(args: &'a [String], valued: &[&str]) -> &'a [String] {
    let mut at = 0;
    while let Some(word) = args.get(at).filter(|word| word.starts_with('-')) {
        at += if valued.contains(&word.as_str()) {
            2
        } else {
            1
        };
        if word == "--" {
            break;
        }
    }
    args.get(at..).unwrap_or_default()
}

fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else {
        return false;
    };
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Splits at `;`, `&`, `|`, newlines and brackets, takes away quotes, redirections and assignments in front, and looks
/// into `$(…)` and backquotes.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut splitter = Splitter::default();
    splitter.split(line);
    splitter.done
}

#[derive(Default)]
struct Splitter {
    done: Vec<Vec<String>>,
    words: Vec<String>,
    word: Option<String>,
    /// The next word is the target of a redirection.
    redirect: bool,
}

impl Splitter {
    fn split(&mut self, line: &str) {
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\'' => {
                    let quoted: String = chars.by_ref().take_while(|&c| c != '\'').collect();
                    self.push(&quoted);
                }
                '"' => {
                    self.push("");
                    while let Some(c) = chars.next().filter(|&c| c != '"') {
                        match (c, chars.peek()) {
                            ('\\', Some('"' | '\\' | '$' | '`')) => {
                                let next = chars.next().unwrap_or_default();
                                self.push(next.encode_utf8(&mut [0; 4]));
                            }
                            ('$', Some('(')) => self.substitution(until_closed(&mut chars)),
                            ('`', _) => {
                                let inner = chars.by_ref().take_while(|&c| c != '`').collect();
                                self.substitution(inner);
                            }
                            (c, _) => self.push(c.encode_utf8(&mut [0; 4])),
                        }
                    }
                }
                '\\' => {
                    if let Some(next) = chars.next().filter(|&c| c != '\n') {
                        self.push(next.encode_utf8(&mut [0; 4]));
                    }
                }
                '$' if chars.peek() == Some(&'(') => self.substitution(until_closed(&mut chars)),
                '`' => {
                    let inner = chars.by_ref().take_while(|&c| c != '`').collect();
                    self.substitution(inner);
                }
                '#' if self.word.is_none() => {
                    for c in chars.by_ref() {
                        if c == '\n' {
                            break;
                        }
                    }
                    self.end_command();
                }
                '>' | '<' => {
                    // The number in `2>` is no argument.
                    if self
                        .word
                        .as_deref()
                        .is_some_and(|word| word.chars().all(|c| c.is_ascii_digit()))
                    {
                        self.word = None;
                    }
                    self.end_word();
                    while chars
                        .next_if(|c| matches!(c, '>' | '<' | '&' | '|'))
                        .is_some()
                    {}
                    self.redirect = true;
                }
                '&' if chars.peek() == Some(&'>') => {
                    self.end_word();
                    while chars.next_if_eq(&'>').is_some() {}
                    self.redirect = true;
                }
                ';' | '&' | '|' | '\n' | '(' | ')' => self.end_command(),
                c if c.is_whitespace() => self.end_word(),
                c => self.push(c.encode_utf8(&mut [0; 4])),
            }
        }
        self.end_command();
    }

    fn push(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    /// What it prints is not known, so the word stays as it is written.
    fn substitution(&mut self, inner: String) {
        self.push("$(");
        self.push(&inner);
        self.push(")");
        self.done.extend(simple_commands(&inner));
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            let keyword = matches!(
                word.as_str(),
                "if" | "then" | "else" | "elif" | "while" | "until" | "do" | "!" | "{"
            );
            let front = self.words.is_empty() && (is_assignment(&word) || keyword);
            if !std::mem::take(&mut self.redirect) && !front {
                self.words.push(word);
            }
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.redirect = false;
        if !self.words.is_empty() {
            self.done.push(std::mem::take(&mut self.words));
        }
    }
}

/// What stands in brackets, the opening one of which comes next.
fn until_closed(chars: &mut impl Iterator<Item = char>) -> String {
    let mut inner = String::new();
    let mut depth = 0;
    for c in chars {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            break;
        }
        inner.push(c);
    }
    inner.split_off(inner.len().min(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(line: &str) -> Vec<String> {
        let commands = commands_of_line(line);
        commands.iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn lines_as_people_write_them() {
        assert_eq!(commands("git push origin main"), ["git push origin main"]);
        assert_eq!(commands("A=1 B=2 git push"), ["git push"]);
        assert_eq!(
            commands("env FOO=1 git push"),
            ["env FOO=1 git push", "git push"]
        );
        assert_eq!(commands("env -i -u X A=1 git push")[1], "git push");
        assert_eq!(commands("sh -c 'git push'"), ["sh -c git push", "git push"]);
        assert_eq!(
            commands("bash -lc \"cd x && git push\"")[1..],
            ["cd x", "git push"]
        );
        assert_eq!(commands("true & git push"), ["true", "git push"]);
        assert_eq!(commands("echo hi > /etc/passwd 2>&1"), ["echo hi"]);
        assert_eq!(
            commands("echo $(git push)"),
            ["git push", "echo $(git push)"]
        );
        assert_eq!(commands("echo \"`git push`\"")[0], "git push");
        assert_eq!(
            commands("git commit -m 'a; git push'"),
            ["git commit -m a; git push"]
        );
        assert_eq!(
            commands("timeout -k 5 10 nice -n 5 git push")[2],
            "git push"
        );
        assert_eq!(commands("if true; then git push; fi")[1], "git push");
        assert_eq!(commands("# git push"), [""; 0]);
        assert_eq!(commands("echo ''"), ["echo "]);
        assert_eq!(commands(""), [""; 0]);
    }
}
