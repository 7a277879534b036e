//! Where the API server is and who we are to it: as the kubeconfig says, or else as a pod is told.
//!
//! A kubeconfig that is there is the answer, or its fault is: in a pod whose KUBECONFIG is broken, the pod's own cluster would be
//! another one than was meant. And nothing of what stands in it is repeated: a fault may be next to a token, or in a key.

use super::ConnectError;
use http::Uri;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use std::env;
use std::path::{Path, PathBuf};

/// What stands where the kubeconfig names no proxy: with nothing there, kube reads the environment, by rules that are not ours.
const NO_PROXY: &str = "http://nowhere.invalid/";

/// A kubeconfig that leads nowhere.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKubeconfig {
    /// A file can't be read.
    #[error("the kubeconfig {file} can't be read: {why}; correct it, or set KUBECONFIG to another")]
    Unread {
        /// Which.
        file: String,
        /// Why not.
        why: String,
    },
    /// What it says can't be used.
    #[error("the kubeconfig can't be used: {0}; correct it, or set KUBECONFIG to another")]
    Unusable(String),
}

/// The way to the API server.
pub(super) struct Way {
    /// All but the proxy.
    pub config: Config,
    /// Whether a kubeconfig says so. In a pod the API server is asked directly.
    pub by_kubeconfig: bool,
    /// The kubeconfig's own proxy.
    pub proxy: Option<Uri>,
}

/// The way that the machine tells of.
///
/// # Errors
/// When there is a kubeconfig that leads nowhere; or there is none, and this is no pod.
pub(super) async fn way(variable: impl Fn(&str) -> Option<String>) -> Result<Way, ConnectError> {
    let files = files(variable("KUBECONFIG"), env::home_dir());
    if files.is_empty() {
        let config = Config::incluster().map_err(ConnectError::NoCluster)?;
        return Ok(Way { config, by_kubeconfig: false, proxy: None });
    }
    by_kubeconfig(&files).await
}

/// The files that KUBECONFIG names, or else the usual one, if it is there.
fn files(named: Option<String>, home: Option<PathBuf>) -> Vec<PathBuf> {
    let named = named.unwrap_or_default();
    let named: Vec<PathBuf> = env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return named;
    }
    home.map(|home| home.join(".kube/config")).filter(|path| path.exists()).into_iter().collect()
}

async fn by_kubeconfig(files: &[PathBuf]) -> Result<Way, ConnectError> {
    let mut kubeconfig = files.iter().try_fold(Kubeconfig::default(), |merged, file| {
        let merged = Kubeconfig::read_from(file).and_then(|read| merged.merge(read));
        merged.map_err(|error| unread(file, &error))
    })?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        let proxy = cluster.proxy_url.take().filter(|proxy| !proxy.is_empty());
        cluster.proxy_url = Some(proxy.unwrap_or_else(|| NO_PROXY.to_owned()));
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| match error {
        KubeconfigError::ParseProxyUrl(_) => ConnectError::BadClusterProxy,
        error => ConnectError::Kubeconfig(BadKubeconfig::Unusable(what(&error))),
    })?;
    let told = config.auth_info.exec.as_mut().and_then(|exec| exec.cluster.as_mut());
    if let Some(cluster) = told.filter(|cluster| cluster.proxy_url.as_deref() == Some(NO_PROXY)) {
        cluster.proxy_url = None;
    }
    let proxy = config.proxy_url.take().filter(|proxy| *proxy != NO_PROXY);
    Ok(Way { config, by_kubeconfig: true, proxy })
}

fn unread(file: &Path, error: &KubeconfigError) -> BadKubeconfig {
    BadKubeconfig::Unread { file: file.display().to_string(), why: what(error) }
}

/// What is wrong, without the lines that are.
fn what(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        // The parser shows the lines around, and the value that it did not expect.
        KubeconfigError::Parse(error) => error.location().map_or_else(
            || "it is no YAML of a kubeconfig".to_owned(),
            |at| format!("line {}, column {} is no YAML of a kubeconfig", at.line(), at.column()),
        ),
        KubeconfigError::ParseCertificates(_) => "its certificate authority is no PEM".to_owned(),
        error => error.to_string(),
    }
}

/// Why no client can be made of it, without what is in it.
pub(super) fn unusable(error: kube::Error) -> String {
    match error {
        kube::Error::InferKubeconfig(error) => what(&error),
        // A key that is no PEM is repeated line by line, and a program's output whole.
        error @ (kube::Error::RustlsTls(_) | kube::Error::Auth(kube::client::AuthError::AuthExecRun { .. })) => {
            error.to_string().split(": ").take(2).collect::<Vec<_>>().join(": ")
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::connect::cluster;
    use aws_smithy_types::base64;
    use std::fs;

    const SECRET: &str = "SUPERSECRETTOKEN";

    /// A file of this test's own, which is gone with it.
    struct File(PathBuf);

    impl File {
        fn of(name: &str, text: &str) -> Self {
            let file = env::temp_dir().join(format!("ebbtide-{}-{name}", std::process::id()));
            fs::write(&file, text).unwrap();
            Self(file)
        }

        async fn way(&self) -> Result<Way, ConnectError> {
            way(|name| (name == "KUBECONFIG").then(|| self.0.display().to_string())).await
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "current-context: here\ncontexts: [{{name: here, context: {{cluster: one, user: me}}}}]\n\
             clusters:\n- name: one\n  cluster:\n    server: https://10.0.0.1:6443\n{cluster}\
             users:\n- name: me\n  user:\n{user}"
        )
    }

    #[tokio::test]
    async fn what_is_wrong_is_told_without_what_is_in_it() {
        let pem = base64::encode(format!("-----BEGIN A-----\nQUJD\n-----END {SECRET}-----\n"));
        for (name, text, wanted) in [
            ("beside", kubeconfig("", &format!("    token: {SECRET}\n   wrong\n")), "line 11, column"),
            ("value", format!("users: {SECRET}\n"), "line 1, column 8 is no YAML of a kubeconfig"),
            ("type", kubeconfig("", &format!("    exec: {SECRET}\n")), "line 10, column 11"),
            ("base64", kubeconfig(&format!("    certificate-authority-data: '{SECRET}#'\n"), "    {}\n"), "base64"),
            ("pem", kubeconfig(&format!("    certificate-authority-data: {pem}\n"), "    {}\n"), "authority is no PEM"),
        ] {
            let file = File::of(name, &text);
            let said = file.way().await.err().map(|error| format!("{error} {error:?}")).unwrap_or_default();
            assert!(said.contains(wanted), "{name}: {said}");
            assert!(!said.contains("SUPER"), "{name}: {said}");
        }
    }

    #[tokio::test]
    async fn a_key_that_is_none_is_not_repeated() {
        // On one line, as it comes out of an unquoted variable.
        let key = base64::encode(format!("-----BEGIN PRIVATE KEY----- {SECRET}"));
        let user = format!("    client-certificate-data: {key}\n    client-key-data: {key}\n");
        let file = File::of("key", &kubeconfig("", &user));
        let way = file.way().await.unwrap();
        let error = cluster::client(way.config, None, None).err().expect("it can't be used");
        let said = unusable(error);
        // What would follow is the key, as numbers.
        assert!(said.ends_with("identity PEM is invalid"), "{said}");
    }

    #[tokio::test]
    async fn the_fault_of_a_kubeconfig_is_the_answer() {
        let named = way(|name| (name == "KUBECONFIG").then(|| "/nowhere/kubeconfig".to_owned())).await.err();
        let said = named.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.starts_with("the kubeconfig /nowhere/kubeconfig can't be read: No such file"), "{said}");
        let empty = File::of("empty", "").way().await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(empty.starts_with("the kubeconfig can't be used: failed to determine current context;"), "{empty}");
    }

    #[test]
    fn the_usual_file_counts_where_none_is_named() {
        let home = env::temp_dir().join(format!("ebbtide-{}-home", std::process::id()));
        assert_eq!(files(Some(String::new()), Some(home.clone())), Vec::<PathBuf>::new(), "it is not there");
        fs::create_dir_all(home.join(".kube")).unwrap();
        fs::write(home.join(".kube/config"), "").unwrap();
        assert_eq!(files(Some(":".to_owned()), Some(home.clone())), [home.join(".kube/config")]);
        assert_eq!(files(Some("a::b".to_owned()), Some(home.clone())), [PathBuf::from("a"), PathBuf::from("b")]);
        fs::remove_dir_all(home).unwrap();
    }

    #[tokio::test]
    async fn its_own_proxy_is_kept_apart() {
        let exec = "    exec: {command: aws, provideClusterInfo: true}\n";
        let told = |way: &Way| way.config.auth_info.exec.clone().unwrap().cluster.unwrap().proxy_url;
        let none = File::of("none", &kubeconfig("", exec)).way().await.unwrap();
        assert_eq!((&none.proxy, &none.config.proxy_url, told(&none)), (&None, &None, None));
        let own = File::of("own", &kubeconfig("    proxy-url: http://own:3128\n", exec)).way().await.unwrap();
        assert_eq!(own.proxy.as_ref().map(ToString::to_string).as_deref(), Some("http://own:3128/"));
        assert_eq!(told(&own).as_deref(), Some("http://own:3128"));
        let bad = File::of("bad", &kubeconfig(&format!("    proxy-url: http://me:{SECRET} x\n"), exec)).way().await;
        let said = bad.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(said, "the kubeconfig's proxy-url names no proxy; write it as http://HOST:PORT");
    }
}
