//! Every process that can be seen, with one look each.
//!
//! A process that ends meanwhile is left out. One read of `/proc/PID/stat` has all figures; who it belongs to is the
//! owner of `/proc/PID`, which is right also for processes that hide the rest; the command is a read more.

use std::ffi::CStr;
use std::io::Write as _;

use invigil_schema::{CpuBusy, OsText, ProcessRef, ProcessState, ProcessSummary, ProcessView};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::param::{clock_ticks_per_second, page_size};

use super::reading::{since, worn};
use super::tree::{Tree, number, percent};
use super::{TelemetryError, machine};

/// How many of the largest are shown in a summary.
const LARGEST: usize = 3;

/// How much of a command is shown.
const COMMAND: usize = 256;

/// The flag of a process that is a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Looks at processes, and remembers how much time each had used.
#[derive(Debug, Default)]
pub(super) struct Census {
    pids: Vec<u32>,
    last: Option<Look>,
}

/// Processor time of all processes at one moment, by pid.
#[derive(Debug)]
struct Look {
    uptime_ms: u64,
    ticks: Vec<(ProcessRef, u64)>,
}

/// A process, and whether it is a thread of the kernel, of which the rest is known: it is root's and has no command.
#[derive(Clone)]
struct Seen {
    view: ProcessView,
    kernel: bool,
}

/// Figures of one process.
struct Figures<'a> {
    name: &'a [u8],
    state: ProcessState,
    parent: u32,
    kernel: bool,
    ticks: u64,
    threads: u32,
    start: u64,
    rss_pages: u64,
}

impl Census {
    pub(super) fn all(&mut self, proc: &mut Tree) -> Result<Vec<ProcessView>, TelemetryError> {
        let mut all = self.look(proc)?;
        all.retain_mut(|seen| complete(proc, seen));
        Ok(all.into_iter().map(|seen| seen.view).collect())
    }

    pub(super) fn summary(
        &mut self,
        proc: &mut Tree,
        uid: u32,
    ) -> Result<ProcessSummary, TelemetryError> {
        let mut all = self.look(proc)?;
        let mut summary = ProcessSummary::default();
        for seen in &all {
            let view = &seen.view;
            summary.total += 1;
            match view.state {
                ProcessState::Running => summary.running += 1,
                ProcessState::Blocked => summary.blocked += 1,
                ProcessState::Stopped => summary.stopped += 1,
                ProcessState::Zombie => summary.zombies += 1,
                ProcessState::Sleeping | ProcessState::Idle | ProcessState::Other => {}
            }
            summary.threads += u64::from(view.threads);
            summary.rss_bytes += view.rss_bytes;
            if user(proc, seen) == Some(uid) {
                summary.user_threads += u64::from(view.threads);
            }
        }
        let cpu = |view: &ProcessView| view.busy.map_or(0.0, |busy| busy.percent);
        summary.most_memory = largest(proc, &mut all, |a, b| b.rss_bytes.cmp(&a.rss_bytes));
        summary.most_cpu = largest(proc, &mut all, |a, b| {
            let by_time = b.cpu_ms.cmp(&a.cpu_ms);
            cpu(b).total_cmp(&cpu(a)).then(by_time)
        });
        Ok(summary)
    }

    /// All processes, without their users and commands.
    fn look(&mut self, proc: &mut Tree) -> Result<Vec<Seen>, TelemetryError> {
        let uptime_ms = machine::uptime_ms(proc)?;
        proc.numbers(&mut self.pids)
            .map_err(|source| TelemetryError::Read {
                path: proc.path(""),
                source,
            })?;
        let tick_ms = 1000 / clock_ticks_per_second().max(1);
        let page_bytes = page_size() as u64;
        let mut all = Vec::with_capacity(self.pids.len());
        let mut ticks = Vec::with_capacity(self.pids.len());
        for &pid in &self.pids {
            let mut space = [0; 32];
            let Ok(stat) = proc.read(path(&mut space, pid, "/stat")) else {
                continue;
            };
            let Some(figures) = figures(stat) else {
                continue;
            };
            let process = ProcessRef {
                pid,
                start: figures.start,
            };
            let started_ms = figures.start * tick_ms;
            let last = self.last.as_ref();
            let view = ProcessView {
                process,
                parent: figures.parent,
                uid: 0,
                state: figures.state,
                threads: figures.threads,
                cpu_ms: figures.ticks * tick_ms,
                busy: last
                    .and_then(|last| last.busy(process, started_ms, figures.ticks, uptime_ms)),
                rss_bytes: figures.rss_pages * page_bytes,
                started_ms,
                name: figures.name.to_owned().into(),
                command: Vec::new(),
                command_cut: false,
            };
            let kernel = figures.kernel;
            let used = figures.ticks;
            all.push(Seen { view, kernel });
            ticks.push((process, used));
        }
        proc.forget_others(&self.pids);
        let worn = |last: &Look| worn(last.uptime_ms, uptime_ms);
        if self.last.as_ref().is_none_or(worn) {
            self.last = Some(Look { uptime_ms, ticks });
        }
        Ok(all)
    }
}

impl Look {
    /// How busy a process was since then, or since its start if that was later.
    fn busy(&self, process: ProcessRef, started_ms: u64, ticks: u64, now: u64) -> Option<CpuBusy> {
        let known = self.ticks.binary_search_by_key(&process, |known| known.0);
        let (then, before) = match known {
            Ok(at) => (self.uptime_ms, self.ticks[at].1),
            Err(_) if started_ms >= self.uptime_ms => (started_ms, 0),
            Err(_) => return None,
        };
        let over_ms = since(then, now)?;
        let used_ms = ticks.checked_sub(before)? * 1000 / clock_ticks_per_second().max(1);
        Some(CpuBusy {
            percent: percent(used_ms as f64, over_ms as f64),
            over_ms,
        })
    }
}

/// The first of an order, with all that can be said of them. The others stay where they were, in no order.
fn largest(
    proc: &mut Tree,
    all: &mut [Seen],
    order: impl Fn(&ProcessView, &ProcessView) -> std::cmp::Ordering,
) -> Vec<ProcessView> {
    let order = |a: &Seen, b: &Seen| order(&a.view, &b.view);
    let most = LARGEST.min(all.len());
    if most < all.len() {
        all.select_nth_unstable_by(most, order);
    }
    let mut first = all[..most].to_vec();
    first.sort_by(order);
    first.retain_mut(|seen| complete(proc, seen));
    first.into_iter().map(|seen| seen.view).collect()
}

/// Adds user and command. False if the process has gone.
fn complete(proc: &mut Tree, seen: &mut Seen) -> bool {
    let Some(uid) = user(proc, seen) else {
        return false;
    };
    let view = &mut seen.view;
    view.uid = uid;
    if seen.kernel || view.state == ProcessState::Zombie {
        return true;
    }
    let mut space = [0; 32];
    let path = path(&mut space, view.process.pid, "/cmdline");
    // Nobody may read that of some processes; they are there all the same.
    let text = proc.beginning(path, COMMAND).unwrap_or_default();
    view.command_cut = text.len() == COMMAND;
    // A process that writes its own title leaves zeros behind it.
    let end = text.iter().rposition(|&byte| byte != 0);
    let text = end.map_or(&[][..], |end| &text[..=end]);
    if !text.is_empty() {
        let arguments = text.split(|&byte| byte == 0);
        view.command = arguments
            .map(|text| OsText::from(text.to_owned()))
            .collect();
    }
    true
}

/// The user whose rights a process has.
fn user(proc: &Tree, seen: &Seen) -> Option<u32> {
    if seen.kernel {
        return Some(0);
    }
    let mut space = [0; 32];
    let path = path(&mut space, seen.view.process.pid, "");
    let found = statx(proc.root(), path, AtFlags::empty(), StatxFlags::UID);
    found.ok().map(|found| found.stx_uid)
}

/// `PID/name` on the stack.
fn path<'a>(space: &'a mut [u8; 32], pid: u32, name: &str) -> &'a CStr {
    // Ten digits and a short name fit.
    let _ = write!(&mut space[..31], "{pid}{name}");
    CStr::from_bytes_until_nul(space).unwrap_or_default()
}

/// Reads `PID (NAME) STATE PARENT …`. The name may hold anything, parentheses, spaces and newlines too; nothing behind it
/// has a parenthesis.
fn figures(stat: &[u8]) -> Option<Figures<'_>> {
    let name = memchr::memchr(b'(', stat)? + 1..memchr::memrchr(b')', stat)?;
    let mut fields = stat.get(name.end + 2..)?.split(|&byte| byte == b' ');
    let state = match fields.next()? {
        b"R" => ProcessState::Running,
        b"S" => ProcessState::Sleeping,
        b"D" => ProcessState::Blocked,
        b"T" | b"t" => ProcessState::Stopped,
        b"Z" | b"X" | b"x" => ProcessState::Zombie,
        b"I" => ProcessState::Idle,
        _ => ProcessState::Other,
    };
    // Fields are counted from 1, the state is the third; `skip` says how many are passed over.
    let mut field = |skip: usize| number(fields.nth(skip)?);
    let parent = field(0)?;
    let flags = field(9 - 5)?;
    let ticks = field(14 - 10)? + field(0)?;
    let threads = field(20 - 16)?;
    let start = field(22 - 21)?;
    let rss_pages = field(24 - 23)?;
    Some(Figures {
        name: stat.get(name)?,
        state,
        parent: u32::try_from(parent).ok()?,
        kernel: flags & KERNEL_THREAD != 0,
        ticks,
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
        start,
        rss_pages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "R 7 1 1 0 -1 4194304 97 0 0 0 150 25 0 0 20 0 3 0 2235185 3133440 362 18446744073709551615 1";

    #[test]
    fn names_may_hold_anything() {
        for name in ["cat", "a b", ")", "((", ") R 1 1 (", "a\nb", "", "\u{fc}"] {
            let line = format!("12 ({name}) {REST}\n");
            let figures = figures(line.as_bytes()).unwrap();
            assert_eq!(figures.name, name.as_bytes());
            let numbers = (figures.parent, figures.threads, figures.rss_pages);
            assert_eq!(numbers, (7, 3, 362), "{name}");
            assert_eq!((figures.ticks, figures.start), (175, 2235185), "{name}");
            assert_eq!(figures.state, ProcessState::Running);
            assert!(!figures.kernel);
        }
    }

    #[test]
    fn threads_of_the_kernel_are_told_by_their_flag() {
        let line = format!("2 (kthreadd) {}", REST.replace(" 4194304 ", " 2129984 "));
        assert!(figures(line.as_bytes()).unwrap().kernel);
    }

    #[test]
    fn what_is_cut_off_is_not_read() {
        let line = format!("12 (cat) {REST}");
        let needed = line.find(" 1844").unwrap();
        for end in 0..needed {
            let cut = &line.as_bytes()[..end];
            // A number that is cut off inside is still a number: only the last one of all can be.
            let last = line[..needed].rfind(' ').unwrap();
            assert!(figures(cut).is_none() || end > last + 1, "{end}");
        }
        assert!(figures(&line.as_bytes()[..needed]).is_some());
    }
}
