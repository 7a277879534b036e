//! One run of the program: its environment, its output, its errors.

use super::{ClientCertificate, ExecCredentials};
use futures_util::future::{Either, select};
use http::HeaderValue;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use std::collections::HashMap;
use std::io::{ErrorKind, IsTerminal, Write};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::join;
use tokio::process::Command;
use tokio::time::timeout;

/// Timeout of a run. Some programs wait for a person who types a code, or signs in with a browser.
const RUN_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum size of the output, in bytes. Tokens and certificates are some kilobytes.
const MAX_OUTPUT: u64 = 1024 * 1024;

/// Maximum length of the last line of errors that is repeated, in characters.
const MAX_ERROR_LINE: usize = 300;

/// The reason why the program gave no credentials. Its output is not repeated: it may be a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProgram {
    /// The kubeconfig does not name the program.
    #[error("the kubeconfig has a user.exec without a command; name the program that gives out credentials")]
    Unnamed,
    /// There is no such program.
    #[error("the kubeconfig's program `{program}` is not {place}; install it")]
    Missing {
        /// Its name.
        program: String,
        /// The place where it was looked for.
        place: &'static str,
    },
    /// The program can't be started.
    #[error("the kubeconfig's program `{program}` can't be started: {why}; run it yourself to see why")]
    Unstartable {
        /// Its name.
        program: String,
        /// The system's error.
        why: String,
    },
    /// The program failed.
    #[error("the kubeconfig's program `{program}` {how}; run it yourself to see why")]
    Failed {
        /// Its name.
        program: String,
        /// How it ended, with its last line of errors.
        how: String,
    },
    /// The program did not end.
    #[error("the kubeconfig's program `{program}` gave no credentials within {} s; run it yourself to see why", RUN_TIMEOUT.as_secs())]
    Late {
        /// Its name.
        program: String,
    },
    /// The program's output is not a credential.
    #[error(
        "the kubeconfig's program `{program}` gave no credentials that can be read; run it yourself to see what it gives"
    )]
    Unread {
        /// Its name.
        program: String,
    },
}

/// Runs the program to its end, and reads its credentials.
///
/// # Errors
/// When the program can't be run, fails, does not end in time, or gives no credentials.
pub(super) async fn run(exec: &ExecConfig) -> Result<ExecCredentials, BadProgram> {
    let program = exec.command.clone().filter(|name| !name.is_empty()).ok_or(BadProgram::Unnamed)?;
    let output = timeout(RUN_TIMEOUT, output(exec, &program)).await;
    let output = output.unwrap_or_else(|_| Err(BadProgram::Late { program: program.clone() }))?;
    parse(&output).ok_or(BadProgram::Unread { program })
}

/// Returns the command as kubectl would run it. Without a terminal the program may not ask a person.
fn command(exec: &ExecConfig, program: &str, is_interactive: bool) -> Command {
    let mut spec = serde_json::json!({ "interactive": is_interactive });
    if let Some(cluster) = &exec.cluster {
        spec["cluster"] = serde_json::to_value(cluster).unwrap_or_default();
    }
    let info = serde_json::json!({ "kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec });
    let variable = |entry: &HashMap<String, String>| Some((entry.get("name")?.clone(), entry.get("value")?.clone()));
    let mut command = Command::new(program);
    command
        .args(exec.args.iter().flatten())
        .envs(exec.env.iter().flatten().filter_map(variable))
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(if is_interactive { Stdio::inherit() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs the program, and returns its standard output.
async fn output(exec: &ExecConfig, program: &str) -> Result<Vec<u8>, BadProgram> {
    let unstartable =
        |why: std::io::Error| BadProgram::Unstartable { program: program.to_owned(), why: why.to_string() };
    let is_interactive = exec.interactive_mode != Some(ExecInteractiveMode::Never) && std::io::stdin().is_terminal();
    let mut child = command(exec, program, is_interactive).spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => BadProgram::Missing {
            program: program.to_owned(),
            place: if program.contains('/') { "there" } else { "on PATH" },
        },
        _ => unstartable(error),
    })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async {
        let mut output = Vec::new();
        let read = async {
            match stdout {
                Some(stdout) => stdout.take(MAX_OUTPUT).read_to_end(&mut output).await.map(drop),
                None => Ok(()),
            }
        };
        let (read, status) = join!(read, child.wait());
        read.and(status).map(|status| (status, output)).map_err(unstartable)
    };
    let last_error = async {
        match stderr {
            Some(stderr) => last_line(stderr, is_interactive).await,
            None => String::new(),
        }
    };
    // A process that the program leaves behind may hold standard error open. After a success its end does not matter.
    let (ended, last_error) = match select(pin!(ended), pin!(last_error)).await {
        Either::Left((Ok((status, output)), _)) if status.success() => return Ok(output),
        Either::Left((ended, last_error)) => (ended, last_error.await),
        Either::Right((last_error, ended)) => (ended.await, last_error),
    };
    match ended? {
        (status, output) if status.success() => Ok(output),
        (status, _) => Err(BadProgram::Failed { program: program.to_owned(), how: describe(status, &last_error) }),
    }
}

/// Returns the last line of standard error. If `shown`, a person at the terminal sees all of it at once: it may be a question.
async fn last_line(mut stderr: impl AsyncRead + Unpin, shown: bool) -> String {
    let mut tail = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        if shown {
            // A closed terminal is no reason to stop.
            let _ = std::io::stderr().write_all(&chunk[..read]);
        }
        tail.extend_from_slice(&chunk[..read]);
        tail.drain(..tail.len().saturating_sub(chunk.len()));
    }
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(MAX_ERROR_LINE).collect()
}

/// Returns how the program ended, with its last line of errors.
fn describe(status: ExitStatus, last_error: &str) -> String {
    let ended = status.code().map_or_else(|| format!("was ended by a {status}"), |code| format!("ended with {code}"));
    if last_error.is_empty() { ended } else { format!("{ended}: {}", last_error.trim_end_matches('.')) }
}

/// The program's output: an `ExecCredential`.
#[derive(Deserialize)]
struct Output {
    status: OutputStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Parses the output: JSON, or YAML, which kubectl accepts as well.
fn parse(output: &[u8]) -> Option<ExecCredentials> {
    let status = serde_saphyr::from_slice::<Output>(output).ok()?.status;
    let expiry = status.expiration_timestamp.map(|expiry| expiry.parse()).transpose().ok()?;
    let bearer = status.token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose().ok()?;
    let bearer = bearer.map(|mut bearer| {
        bearer.set_sensitive(true);
        bearer
    });
    let pair = status.client_certificate_data.zip(status.client_key_data);
    let certificate = pair.map(|(certificate, key)| ClientCertificate { certificate, key });
    (bearer.is_some() || certificate.is_some()).then_some(ExecCredentials { bearer, certificate, expiry })
}
