//! The seccomp filter: rules about registers, compiled to BPF.
//!
//! A filter cannot look at memory. Calls whose number alone decides that they pass cost nothing: the kernel remembers
//! the verdict (Linux 5.11).

use libc::{sock_filter, sock_fprog};

/// One call that does not simply pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Its number.
    pub(crate) number: i64,
    /// When it is trapped; otherwise it passes.
    pub(crate) when: When,
}

/// What a rule looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    /// At nothing.
    Always,
    /// The low half of an argument has one of these bits.
    AnyBit(u8, u32),
    /// The low half of an argument is this.
    Equals(u8, u32),
    /// The low half of an argument is one of these.
    OneOf(u8, [u32; 2]),
    /// An argument is not null.
    NonZero(u8),
    /// The flags of `clone` have one of these bits, or make a process, not a thread, that shares its file system
    /// context: umask and working directory.
    Clone(u32),
    /// It always fails with this error, untrapped.
    Refused(u16),
    /// It fails with this error, untrapped, if its second and third argument are one of these pairs.
    RefusedOptions(u16, &'static [(i32, i32)]),
}

/// How a trapped call is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trap {
    /// To the listener.
    Notify,
    /// To the tracer.
    Trace,
}

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCH: u32 = 0xc000_00b7;
/// Numbers from here on are calls of the x32 architecture. No other number is as great.
pub(crate) const X32: u32 = 0x4000_0000;

const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const JUMP_GREATER_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

fn low_half(argument: u8) -> u32 {
    ARGUMENTS_OFFSET + 8 * u32::from(argument)
}

/// Compiles the rules. Calls of another architecture are trapped whatever they are.
pub(crate) fn compile(rules: &[Rule], trap: Trap) -> Vec<sock_filter> {
    let trapped = match trap {
        Trap::Notify => libc::SECCOMP_RET_USER_NOTIF,
        Trap::Trace => libc::SECCOMP_RET_TRACE,
    };
    let mut program = vec![
        op(LOAD, ARCH_OFFSET, 0, 0),
        op(JUMP_EQUAL, ARCH, 1, 0),
        op(RETURN, trapped, 0, 0),
        op(LOAD, NUMBER_OFFSET, 0, 0),
        op(JUMP_GREATER_EQUAL, X32, 0, 1),
        op(RETURN, trapped, 0, 0),
    ];
    for rule in rules {
        let body = match rule.when {
            When::Always => vec![op(RETURN, trapped, 0, 0)],
            When::Refused(errno) => {
                vec![op(RETURN, libc::SECCOMP_RET_ERRNO | u32::from(errno), 0, 0)]
            }
            When::RefusedOptions(errno, pairs) => {
                let refused = libc::SECCOMP_RET_ERRNO | u32::from(errno);
                let mut body = Vec::new();
                for (level, name) in pairs {
                    body.extend([
                        op(LOAD, low_half(1), 0, 0),
                        op(JUMP_EQUAL, *level as u32, 0, 3),
                        op(LOAD, low_half(2), 0, 0),
                        op(JUMP_EQUAL, *name as u32, 0, 1),
                        op(RETURN, refused, 0, 0),
                    ]);
                }
                body.push(op(RETURN, ALLOW, 0, 0));
                body
            }
            When::AnyBit(argument, bits) => vec![
                op(LOAD, low_half(argument), 0, 0),
                op(JUMP_SET, bits, 0, 1),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
            When::Clone(bits) => vec![
                op(LOAD, low_half(0), 0, 0),
                op(JUMP_SET, bits, 2, 0),
                op(JUMP_SET, libc::CLONE_THREAD as u32, 2, 0),
                op(JUMP_SET, libc::CLONE_FS as u32, 0, 1),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
            When::Equals(argument, value) => vec![
                op(LOAD, low_half(argument), 0, 0),
                op(JUMP_EQUAL, value, 0, 1),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
            When::OneOf(argument, [one, other]) => vec![
                op(LOAD, low_half(argument), 0, 0),
                op(JUMP_EQUAL, one, 1, 0),
                op(JUMP_EQUAL, other, 0, 1),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
            When::NonZero(argument) => vec![
                op(LOAD, low_half(argument), 0, 0),
                op(JUMP_EQUAL, 0, 0, 2),
                op(LOAD, low_half(argument) + 4, 0, 0),
                op(JUMP_EQUAL, 0, 1, 0),
                op(RETURN, trapped, 0, 0),
                op(RETURN, ALLOW, 0, 0),
            ],
        };
        program.push(op(JUMP_EQUAL, rule.number as u32, 0, body.len() as u8));
        program.extend(body);
    }
    program.push(op(RETURN, ALLOW, 0, 0));
    program
}

/// The form in which the kernel takes a program. It points into `program`.
pub(crate) fn as_fprog(program: &[sock_filter]) -> sock_fprog {
    sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would.
    fn run(program: &[sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let load = |offset: u32| match offset {
            NUMBER_OFFSET => number,
            ARCH_OFFSET => arch,
            _ => {
                let (index, high) = (
                    (offset - ARGUMENTS_OFFSET) / 8,
                    (offset - ARGUMENTS_OFFSET) % 8,
                );
                (arguments[index as usize] >> (8 * high)) as u32
            }
        };
        let (mut at, mut a) = (0, 0);
        loop {
            let step = program[at];
            let taken = match u32::from(step.code) {
                LOAD => {
                    a = load(step.k);
                    None
                }
                RETURN => return step.k,
                JUMP_EQUAL => Some(a == step.k),
                JUMP_SET => Some(a & step.k != 0),
                JUMP_GREATER_EQUAL => Some(a >= step.k),
                code => panic!("{code}"),
            };
            at += 1 + taken.map_or(0, |t| usize::from(if t { step.jt } else { step.jf }));
        }
    }

    #[test]
    fn registers_decide() {
        let rules = [
            Rule {
                number: 1,
                when: When::AnyBit(2, 3),
            },
            Rule {
                number: 2,
                when: When::NonZero(4),
            },
            Rule {
                number: 3,
                when: When::Equals(0, 77),
            },
            Rule {
                number: 4,
                when: When::Refused(38),
            },
            Rule {
                number: 5,
                when: When::Always,
            },
            Rule {
                number: 7,
                when: When::Clone(1 << 28),
            },
            Rule {
                number: 8,
                when: When::RefusedOptions(1, &[(0, 4), (41, 57)]),
            },
        ];
        let program = compile(&rules, Trap::Notify);
        let trapped = libc::SECCOMP_RET_USER_NOTIF;
        let with = |index: usize, value: u64| {
            let mut arguments = [0; 6];
            arguments[index] = value;
            arguments
        };
        assert_eq!(run(&program, ARCH, 1, with(2, 2)), trapped);
        assert_eq!(run(&program, ARCH, 1, with(2, 4)), ALLOW);
        assert_eq!(run(&program, ARCH, 2, with(4, 0)), ALLOW);
        assert_eq!(run(&program, ARCH, 2, with(4, 1)), trapped);
        assert_eq!(run(&program, ARCH, 2, with(4, 1 << 40)), trapped);
        assert_eq!(run(&program, ARCH, 3, with(0, 77)), trapped);
        assert_eq!(run(&program, ARCH, 3, with(0, 78)), ALLOW);
        assert_eq!(run(&program, ARCH, 4, [0; 6]), libc::SECCOMP_RET_ERRNO | 38);
        assert_eq!(run(&program, ARCH, 5, [0; 6]), trapped);
        assert_eq!(run(&program, ARCH, 6, [0; 6]), ALLOW);
        let (thread, fs) = (libc::CLONE_THREAD as u64, libc::CLONE_FS as u64);
        assert_eq!(run(&program, ARCH, 7, with(0, thread | fs)), ALLOW);
        assert_eq!(run(&program, ARCH, 7, with(0, fs)), trapped);
        assert_eq!(run(&program, ARCH, 7, with(0, 17)), ALLOW);
        assert_eq!(
            run(&program, ARCH, 7, with(0, thread | fs | 1 << 28)),
            trapped
        );
        for (level, name, refused) in [(0, 4, true), (41, 57, true), (41, 4, false), (0, 57, false)]
        {
            let expected = if refused {
                libc::SECCOMP_RET_ERRNO | 1
            } else {
                ALLOW
            };
            let arguments = [3, level, name, 0, 0, 0];
            assert_eq!(run(&program, ARCH, 8, arguments), expected);
        }
        assert_eq!(run(&program, ARCH, X32 | 6, [0; 6]), trapped);
        assert_eq!(run(&program, 0x4000_0003, 6, [0; 6]), trapped);
    }
}
