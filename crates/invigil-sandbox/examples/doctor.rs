//! Prints what works on this machine.
#![expect(clippy::print_stdout, reason = "a program for people and tests")]

fn main() {
    let report = invigil_sandbox::probe::probe_all();
    println!(
        "kernel {} tier {} landlock {:?}",
        report.kernel,
        report.tier.as_str(),
        report.landlock_abi
    );
    for probe in report.probes {
        println!(
            "{:5} {:22} {}",
            probe.works,
            probe.name,
            probe.problem.unwrap_or_default()
        );
    }
}
