//! Tells the program its target, and the commit in `EBBTIDE_COMMIT`, for `--version`. Git is not asked: an ordinary build must not
//! begin again with each commit, and the sources of a release have no `.git`.
#![allow(clippy::disallowed_methods, reason = "a build script's settings are variables")]

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=EBBTIDE_COMMIT");
    let target = var("TARGET").unwrap_or_default();
    let commit = var("EBBTIDE_COMMIT").unwrap_or_default();
    let build = if commit.is_empty() { target } else { format!("commit {commit}, {target}") };
    println!("cargo::rustc-env=EBBTIDE_BUILD={build}");
}
