//! The program is run once, and its faults are named.

use super::*;
use kube::config::ExecInteractiveMode;

const NOW: &str = "2026-11-22T12:00:00Z";

fn shell(script: &str) -> ExecConfig {
    let args = Some(vec!["-c".to_owned(), script.to_owned()]);
    ExecConfig { command: Some("sh".to_owned()), args, ..ExecConfig::default() }
}

/// A script that gives another token each time, which expires this many seconds after the clock's time.
fn token(seconds: i64) -> String {
    let until = NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds);
    format!(r#"echo '{{"status": {{"expirationTimestamp": "{until}", "token": "'$$'"}}}}'"#)
}

async fn start(script: &str) -> Result<(Program, Option<ClientCertificate>), BadProgram> {
    Program::start(shell(script), Clock::showing(NOW.parse().unwrap())).await
}

async fn refused(exec: ExecConfig) -> String {
    run(&exec).await.err().map(|error| error.to_string()).unwrap_or_default()
}

async fn bearer(program: &Program) -> HeaderValue {
    let request = program.sign(Request::new(())).await.unwrap();
    request.headers()[header::AUTHORIZATION].clone()
}

#[tokio::test]
async fn it_runs_once_until_its_credentials_expire() {
    let (lasting, certificate) = start(&token(3600)).await.unwrap();
    assert!(certificate.is_none());
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
    let run = program.state.lock().run.clone().unwrap();
    assert!(run.await.is_err());
    assert_eq!(bearer(&program).await, old);
    assert!(program.state.lock().run.is_none(), "the next call runs it again");

    program.exec = Arc::new(shell(&token(3600)));
    assert_eq!(bearer(&program).await, old, "no call waits for the run");
    let run = program.state.lock().run.clone().unwrap();
    assert!(run.await.is_ok());
    let new = bearer(&program).await;
    assert_ne!(new, old);
    assert_eq!(bearer(&program).await, new);
}

#[tokio::test]
async fn a_call_that_is_given_up_does_not_restart_the_run() {
    let (program, _) = start(&token(-1)).await.unwrap();
    assert!(program.bearer().now_or_never().is_none(), "it waits");
    let run = program.state.lock().run.clone().unwrap();
    let bearer = run.await.ok().and_then(|credentials| credentials.bearer);
    assert_eq!(program.bearer().await.unwrap(), bearer);
}

#[tokio::test]
async fn its_environment_is_as_with_kubectl() {
    let script = r#"test "$FROM" = kubeconfig && printf '{"status": {"token": "%s"}}' "$(echo "$KUBERNETES_EXEC_INFO" | tr -d '"{} ')""#;
    let env = Some(vec![[("name", "FROM"), ("value", "kubeconfig")].map(|(k, v)| (k.into(), v.into())).into()]);
    let api_version = Some("client.authentication.k8s.io/v1".to_owned());
    let interactive_mode = Some(ExecInteractiveMode::Never);
    let cluster = Some(kube::config::ExecAuthCluster { server: Some("here".into()), ..Default::default() });
    let exec = ExecConfig { env, api_version, interactive_mode, cluster, ..shell(script) };
    let bearer = run(&exec).await.unwrap().bearer.unwrap();
    assert_eq!(
        bearer,
        "Bearer apiVersion:client.authentication.k8s.io/v1,kind:ExecCredential,spec:cluster:server:here,interactive:false"
    );
}

#[tokio::test]
async fn a_certificate_comes_with_its_key() {
    let script = r#"echo 'status: {clientCertificateData: "cert", clientKeyData: "key"}'"#;
    let (program, certificate) = start(script).await.unwrap();
    let pair = certificate.map(|it| (it.certificate, it.key));
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
    assert!(run(&shell(&left)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_run_has_a_timeout() {
    assert_eq!(
        refused(shell("exec sleep 1000")).await,
        "the kubeconfig's program `sh` gave no credentials within 60 s; run it yourself to see why"
    );
}
