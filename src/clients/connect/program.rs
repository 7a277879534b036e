//! The kubeconfig's program that gives out credentials, such as `aws eks get-token`.
//!
//! It is run once for all clients, and once more before what it gave expires. kube's own client runs it three times for each client,
//! on the runtime's threads, and waits for it as long as it takes.

use crate::runtime::clock::Clock;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, Shared, select};
use http::{HeaderValue, Request, header};
use jiff::{SignedDuration, Timestamp};
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::join;
use tokio::process::Command;
use tokio::time::timeout;

/// Some let a person type a code, or sign in by a browser. Who has not done that by then is not there.
const PATIENCE: Duration = Duration::from_mins(1);

/// So long before the end of what it gave it is asked anew, beside the calls that still use the old.
const AHEAD: SignedDuration = SignedDuration::from_secs(60);

/// Tokens and certificates are some kilobytes; what is longer is neither.
const LONGEST: u64 = 1024 * 1024;

/// So much of its last line of errors is repeated.
const LINE: usize = 300;

/// Why the program gave no credentials. What it wrote to its output is not repeated: it may be a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProgram {
    /// The kubeconfig does not name it.
    #[error("the kubeconfig has a user.exec without a command; name the program that gives out credentials")]
    Unnamed,
    /// There is no such program.
    #[error("the kubeconfig's program `{program}` is not {place}; install it")]
    Missing {
        /// Its name.
        program: String,
        /// Where it was looked for.
        place: &'static str,
    },
    /// It can't be started.
    #[error("the kubeconfig's program `{program}` can't be started: {why}; run it yourself to see why")]
    Unstartable {
        /// Its name.
        program: String,
        /// What the system says.
        why: String,
    },
    /// It failed.
    #[error("the kubeconfig's program `{program}` {how}; run it yourself to see why")]
    Failed {
        /// Its name.
        program: String,
        /// How it ended, and its last line of errors.
        how: String,
    },
    /// It did not end.
    #[error("the kubeconfig's program `{program}` gave no credentials within {} s; run it yourself to see why", PATIENCE.as_secs())]
    Late {
        /// Its name.
        program: String,
    },
    /// What it gave is not what was asked for.
    #[error(
        "the kubeconfig's program `{program}` gave no credentials that can be read; run it yourself to see what it gives"
    )]
    Unread {
        /// Its name.
        program: String,
    },
}

/// A certificate and its key, as PEM.
pub(super) type Pair = (String, String);

/// What it gave. There is no `Debug`: these are secrets.
#[derive(Clone)]
struct Given {
    bearer: Option<HeaderValue>,
    pair: Option<Pair>,
    until: Option<Timestamp>,
}

impl Given {
    /// Whether it can still be used so much later.
    fn lasts(&self, now: Timestamp, longer: SignedDuration) -> bool {
        self.until.is_none_or(|until| until.duration_since(now) > longer)
    }
}

type Asked = Shared<BoxFuture<'static, Result<Given, BadProgram>>>;

/// The program, with what it gave last.
pub(super) struct Program {
    exec: Arc<ExecConfig>,
    clock: Clock,
    held: Mutex<Held>,
}

struct Held {
    given: Given,
    /// The run that is going on. Whoever needs a token drives it, and it outlives each of them.
    asked: Option<Asked>,
}

impl Program {
    /// Runs it for the first time. A certificate is for as long as the clients live; a token is renewed.
    ///
    /// # Errors
    /// When it gives no credentials.
    pub async fn start(exec: ExecConfig, clock: Clock) -> Result<(Self, Option<Pair>), BadProgram> {
        let exec = Arc::new(exec);
        let mut given = ask(&exec).await?;
        let pair = given.pair.take();
        Ok((Self { exec, clock, held: Mutex::new(Held { given, asked: None }) }, pair))
    }

    /// The request with the token, if it gives out tokens.
    pub async fn sign<B>(&self, mut request: Request<B>) -> Result<Request<B>, BadProgram> {
        if let Some(bearer) = self.bearer().await? {
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
        }
        Ok(request)
    }

    async fn bearer(&self) -> Result<Option<HeaderValue>, BadProgram> {
        let (old, asked) = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.given.bearer.is_none() || held.given.lasts(self.clock.now(), AHEAD) {
                return Ok(held.given.bearer.clone());
            }
            let exec = Arc::clone(&self.exec);
            let ask = || async move { ask(&exec).await }.boxed().shared();
            (held.given.clone(), held.asked.get_or_insert_with(ask).clone())
        };
        // A drain does not wait for the new token while the old one will do.
        let will_do = old.lasts(self.clock.now(), SignedDuration::ZERO);
        let answer = if will_do { asked.clone().now_or_never() } else { Some(asked.clone().await) };
        let Some(answer) = answer else { return Ok(old.bearer) };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // Of all that waited for this run the first comes here.
        if held.asked.as_ref().is_some_and(|current| current.ptr_eq(&asked)) {
            held.asked = None;
            if let Ok(given) = &answer {
                held.given = given.clone();
            }
        }
        match answer {
            Err(_) if will_do => Ok(old.bearer),
            answer => answer.map(|given| given.bearer),
        }
    }
}

/// Runs it to its end.
async fn ask(exec: &ExecConfig) -> Result<Given, BadProgram> {
    let program = exec.command.clone().filter(|name| !name.is_empty()).ok_or(BadProgram::Unnamed)?;
    let run = timeout(PATIENCE, run(exec, &program)).await;
    let output = run.unwrap_or_else(|_| Err(BadProgram::Late { program: program.clone() }))?;
    read(&output).ok_or(BadProgram::Unread { program })
}

async fn run(exec: &ExecConfig, program: &str) -> Result<Vec<u8>, BadProgram> {
    let unstartable =
        |why: std::io::Error| BadProgram::Unstartable { program: program.to_owned(), why: why.to_string() };
    // As kubectl does it: where nobody sits at a terminal, nobody is asked.
    let asks = exec.interactive_mode != Some(ExecInteractiveMode::Never) && std::io::stdin().is_terminal();
    let mut spec = serde_json::json!({ "interactive": asks });
    if let Some(cluster) = &exec.cluster {
        spec["cluster"] = serde_json::to_value(cluster).unwrap_or_default();
    }
    let wanted = serde_json::json!({ "kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec });
    let pair = |pair: &std::collections::HashMap<String, String>| {
        Some((pair.get("name")?.clone(), pair.get("value")?.clone()))
    };
    let mut command = Command::new(program);
    command
        .args(exec.args.iter().flatten())
        .envs(exec.env.iter().flatten().filter_map(pair))
        .env("KUBERNETES_EXEC_INFO", wanted.to_string())
        .stdin(if asks { Stdio::inherit() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| match error.kind() {
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
                Some(stdout) => stdout.take(LONGEST).read_to_end(&mut output).await.map(drop),
                None => Ok(()),
            }
        };
        let (read, status) = join!(read, child.wait());
        read.and(status).map(|status| (status, output)).map_err(unstartable)
    };
    let heard = async {
        match stderr {
            Some(stderr) => last_line(stderr, asks).await,
            None => String::new(),
        }
    };
    // What it leaves behind may hold its standard error open: that counts only where it failed.
    let (ended, said) = match select(pin!(ended), pin!(heard)).await {
        Either::Left((Ok((status, output)), _)) if status.success() => return Ok(output),
        Either::Left((ended, heard)) => (ended, heard.await),
        Either::Right((said, ended)) => (ended.await, said),
    };
    match ended? {
        (status, output) if status.success() => Ok(output),
        (status, _) => Err(BadProgram::Failed { program: program.to_owned(), how: how(status, &said) }),
    }
}

/// The last line of what it says. A person at a terminal sees all of it at once: it may be a question.
async fn last_line(mut stderr: impl AsyncRead + Unpin, shown: bool) -> String {
    let mut tail = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        if shown {
            // That nobody can be shown it is no reason to stop.
            let _ = std::io::stderr().write_all(&chunk[..read]);
        }
        tail.extend_from_slice(&chunk[..read]);
        tail.drain(..tail.len().saturating_sub(chunk.len()));
    }
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(LINE).collect()
}

fn how(status: ExitStatus, said: &str) -> String {
    let ended = status.code().map_or_else(|| format!("was ended by a {status}"), |code| format!("ended with {code}"));
    if said.is_empty() { ended } else { format!("{ended}: {}", said.trim_end_matches('.')) }
}

#[derive(Deserialize)]
struct Credential {
    status: Credentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Credentials {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Reads what it gave: JSON, or YAML, which kubectl takes as well.
fn read(output: &[u8]) -> Option<Given> {
    let given = serde_saphyr::from_slice::<Credential>(output).ok()?.status;
    let until = given.expiration_timestamp.map(|until| until.parse()).transpose().ok()?;
    let bearer = given.token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose().ok()?;
    let bearer = bearer.map(|mut bearer| {
        bearer.set_sensitive(true);
        bearer
    });
    let pair = given.client_certificate_data.zip(given.client_key_data);
    (bearer.is_some() || pair.is_some()).then_some(Given { bearer, pair, until })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-22T12:00:00Z";

    fn shell(script: &str) -> ExecConfig {
        let args = Some(vec!["-c".to_owned(), script.to_owned()]);
        ExecConfig { command: Some("sh".to_owned()), args, ..ExecConfig::default() }
    }

    /// A script that gives a token of its own each time, for so many seconds from the clock's time.
    fn token(seconds: i64) -> String {
        let until = NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds);
        format!(r#"echo '{{"status": {{"expirationTimestamp": "{until}", "token": "'$$'"}}}}'"#)
    }

    async fn start(script: &str) -> Result<(Program, Option<Pair>), BadProgram> {
        Program::start(shell(script), Clock::showing(NOW.parse().unwrap())).await
    }

    async fn refused(exec: ExecConfig) -> String {
        ask(&exec).await.err().map(|error| error.to_string()).unwrap_or_default()
    }

    async fn bearer(program: &Program) -> HeaderValue {
        let request = program.sign(Request::new(())).await.unwrap();
        request.headers()[header::AUTHORIZATION].clone()
    }

    #[tokio::test]
    async fn it_is_run_once_until_what_it_gave_ends() {
        let (lasting, pair) = start(&token(3600)).await.unwrap();
        assert_eq!(pair, None);
        let first = bearer(&lasting).await;
        assert!(first.is_sensitive());
        assert_eq!(bearer(&lasting).await, first);
        let (for_ever, _) = start(r#"echo '{"status": {"token": "'$$'"}}'"#).await.unwrap();
        assert_eq!(bearer(&for_ever).await, bearer(&for_ever).await);
        let (ended, _) = start(&token(-1)).await.unwrap();
        assert_ne!(bearer(&ended).await, bearer(&ended).await);
    }

    #[tokio::test]
    async fn calls_go_on_with_the_old_token_while_it_lasts() {
        let (mut program, _) = start(&token(30)).await.unwrap();
        program.exec = Arc::new(shell("exit 1"));
        let old = bearer(&program).await;
        // One of these meets the end of the run.
        let asked = program.held.lock().unwrap().asked.clone().unwrap();
        assert!(asked.await.is_err());
        assert_eq!(bearer(&program).await, old);
        assert!(program.held.lock().unwrap().asked.is_none(), "it will be asked again");

        program.exec = Arc::new(shell(&token(3600)));
        assert_eq!(bearer(&program).await, old, "nobody waits for it");
        let asked = program.held.lock().unwrap().asked.clone().unwrap();
        assert!(asked.await.is_ok());
        let new = bearer(&program).await;
        assert_ne!(new, old);
        assert_eq!(bearer(&program).await, new);
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_does_not_begin_the_run_anew() {
        let (program, _) = start(&token(-1)).await.unwrap();
        assert!(program.bearer().now_or_never().is_none(), "it waits");
        let asked = program.held.lock().unwrap().asked.clone().unwrap();
        let given = asked.await.ok().and_then(|given| given.bearer);
        assert_eq!(program.bearer().await.unwrap(), given);
    }

    #[tokio::test]
    async fn it_is_told_what_kubectl_tells() {
        let script = r#"test "$FROM" = kubeconfig && printf '{"status": {"token": "%s"}}' "$(echo "$KUBERNETES_EXEC_INFO" | tr -d '"{} ')""#;
        let env = Some(vec![[("name", "FROM"), ("value", "kubeconfig")].map(|(k, v)| (k.into(), v.into())).into()]);
        let api_version = Some("client.authentication.k8s.io/v1".to_owned());
        let interactive_mode = Some(ExecInteractiveMode::Never);
        let cluster = Some(kube::config::ExecAuthCluster { server: Some("here".into()), ..Default::default() });
        let exec = ExecConfig { env, api_version, interactive_mode, cluster, ..shell(script) };
        let given = ask(&exec).await.unwrap().bearer.unwrap();
        assert_eq!(
            given,
            "Bearer apiVersion:client.authentication.k8s.io/v1,kind:ExecCredential,spec:cluster:server:here,interactive:false"
        );
    }

    #[tokio::test]
    async fn a_certificate_comes_with_its_key() {
        let script = r#"echo 'status: {clientCertificateData: "cert", clientKeyData: "key"}'"#;
        let (program, pair) = start(script).await.unwrap();
        assert_eq!(pair, Some(("cert".to_owned(), "key".to_owned())));
        assert!(program.sign(Request::new(())).await.unwrap().headers().is_empty());
    }

    #[tokio::test]
    async fn its_fault_names_it_and_says_what_to_do() {
        let missing = |command: &str| ExecConfig { command: Some(command.to_owned()), ..ExecConfig::default() };
        for (exec, wanted) in [
            (missing("no-such-program"), "the kubeconfig's program `no-such-program` is not on PATH; install it"),
            (missing("/no/such"), "the kubeconfig's program `/no/such` is not there; install it"),
            (
                missing("/"),
                "the kubeconfig's program `/` can't be started: Permission denied (os error 13); run it yourself to see why",
            ),
            (
                shell("echo SECRET; echo once >&2; printf 'Sign in first.\n\n' >&2; exit 255"),
                "the kubeconfig's program `sh` ended with 255: Sign in first; run it yourself to see why",
            ),
            (shell("exit 3"), "the kubeconfig's program `sh` ended with 3; run it yourself to see why"),
            (
                shell("kill -9 $$"),
                "the kubeconfig's program `sh` was ended by a signal: 9 (SIGKILL); run it yourself to see why",
            ),
        ] {
            assert_eq!(refused(exec).await, wanted);
        }
        for output in ["", "SECRET", r#"{"status": {}}"#, r#"{"status": {"token": ["SECRET"]}}"#] {
            assert_eq!(
                refused(shell(&format!("echo '{output}'"))).await,
                "the kubeconfig's program `sh` gave no credentials that can be read; run it yourself to see what it gives"
            );
        }
        assert!(refused(ExecConfig::default()).await.contains("name the program"));
    }

    #[tokio::test]
    async fn what_it_leaves_running_is_not_waited_for() {
        // It holds the standard error open, and would for longer than anybody waits.
        let left = format!("sleep 61 >/dev/null & {}", token(3600));
        assert!(ask(&shell(&left)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_not_waited_for_for_ever() {
        assert_eq!(
            refused(shell("exec sleep 1000")).await,
            "the kubeconfig's program `sh` gave no credentials within 60 s; run it yourself to see why"
        );
    }
}
