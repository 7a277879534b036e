//! Access to the API server: by the kubeconfig, or else by the pod's service account.
//!
//! A kubeconfig that exists is used, or its fault is the error: in a pod with an invalid KUBECONFIG, the pod's own cluster would be the
//! wrong one. Errors repeat nothing of its content: a fault may be next to a token, or in a key.

use super::{ClusterChoice, ConnectError};
use http::Uri;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use std::env;
use std::path::{Path, PathBuf};

/// Placeholder for a cluster without a proxy: without one, kube would read the environment, by other rules than kubectl.
const NO_PROXY: &str = "http://nowhere.invalid/";

/// The fault of a kubeconfig.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKubeconfig {
    /// A file can't be read.
    #[error("the kubeconfig {file} can't be read: {why}; correct it, or set KUBECONFIG to another")]
    Unread {
        /// Its path.
        file: String,
        /// The reason.
        why: String,
    },
    /// Its content can't be used.
    #[error("the kubeconfig can't be used: {0}; correct it, or set KUBECONFIG to another")]
    Unusable(String),
}

/// Address and credentials of the API server.
pub(super) struct ClusterAccess {
    /// All but the proxy.
    pub config: Config,
    /// Whether it comes from a kubeconfig. A pod asks the API server directly.
    pub from_kubeconfig: bool,
    /// The kubeconfig's own proxy.
    pub proxy: Option<Uri>,
}

/// Reads the kubeconfig, or else the pod's service account.
///
/// # Errors
/// When the kubeconfig has a fault; or when there is none, and this is no pod.
pub(super) async fn cluster_access(
    cluster: &ClusterChoice,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ClusterAccess, ConnectError> {
    let files = chosen_files(cluster, variable);
    if files.is_empty() && cluster.context.is_some() {
        let why = "there is none, and --context names a part of one".to_owned();
        return Err(BadKubeconfig::Unusable(why).into());
    }
    if files.is_empty() {
        let config = Config::incluster().map_err(ConnectError::NoCluster)?;
        return Ok(ClusterAccess { config, from_kubeconfig: false, proxy: None });
    }
    from_kubeconfig(&files, cluster.context.clone()).await
}

/// Returns the name of the current context, if it can be read.
pub(super) fn current_context(cluster: &ClusterChoice, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    read(&chosen_files(cluster, variable)).ok()?.current_context
}

fn chosen_files(cluster: &ClusterChoice, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let named = || files(variable("KUBECONFIG"), env::home_dir());
    cluster.kubeconfig.clone().map_or_else(named, |file| vec![file])
}

/// Returns the files that KUBECONFIG names, or else the default file, if it exists.
fn files(named: Option<String>, home: Option<PathBuf>) -> Vec<PathBuf> {
    let named = named.unwrap_or_default();
    let named: Vec<PathBuf> = env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return named;
    }
    home.map(|home| home.join(".kube/config")).filter(|path| path.exists()).into_iter().collect()
}

fn read(files: &[PathBuf]) -> Result<Kubeconfig, BadKubeconfig> {
    files.iter().try_fold(Kubeconfig::default(), |merged, file| {
        let merged = Kubeconfig::read_from(file).and_then(|read| merged.merge(read));
        merged.map_err(|error| unread(file, &error))
    })
}

async fn from_kubeconfig(files: &[PathBuf], context: Option<String>) -> Result<ClusterAccess, ConnectError> {
    let mut kubeconfig = read(files)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        let proxy = cluster.proxy_url.take().filter(|proxy| !proxy.is_empty());
        cluster.proxy_url = Some(proxy.unwrap_or_else(|| NO_PROXY.to_owned()));
    }
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions { context, ..KubeConfigOptions::default() })
            .await;
    let mut config = config.map_err(|error| match error {
        KubeconfigError::ParseProxyUrl(_) => ConnectError::BadClusterProxy,
        error => ConnectError::Kubeconfig(BadKubeconfig::Unusable(describe(&error))),
    })?;
    let exec_cluster = config.auth_info.exec.as_mut().and_then(|exec| exec.cluster.as_mut());
    if let Some(cluster) = exec_cluster.filter(|cluster| cluster.proxy_url.as_deref() == Some(NO_PROXY)) {
        cluster.proxy_url = None;
    }
    let proxy = config.proxy_url.take().filter(|proxy| *proxy != NO_PROXY);
    Ok(ClusterAccess { config, from_kubeconfig: true, proxy })
}

fn unread(file: &Path, error: &KubeconfigError) -> BadKubeconfig {
    BadKubeconfig::Unread { file: file.display().to_string(), why: describe(error) }
}

/// Describes the fault without the content of the file.
fn describe(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        // The parser's own text shows lines of the file.
        KubeconfigError::Parse(error) => error.location().map_or_else(
            || "it is no YAML of a kubeconfig".to_owned(),
            |at| format!("line {}, column {} is no YAML of a kubeconfig", at.line(), at.column()),
        ),
        KubeconfigError::ParseCertificates(_) => "its certificate authority is no PEM".to_owned(),
        error => error.to_string(),
    }
}

/// Describes why no client can be made, without the content of the file.
pub(super) fn unusable(error: kube::Error) -> String {
    match error {
        kube::Error::InferKubeconfig(error) => describe(&error),
        // These texts repeat a malformed key line by line, or all of a program's output.
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

        async fn access(&self) -> Result<ClusterAccess, ConnectError> {
            self.access_of(None).await
        }

        async fn access_of(&self, context: Option<&str>) -> Result<ClusterAccess, ConnectError> {
            let choice = ClusterChoice { context: context.map(str::to_owned), ..ClusterChoice::default() };
            cluster_access(&choice, |name| (name == "KUBECONFIG").then(|| self.0.display().to_string())).await
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
            let said = file.access().await.err().map(|error| format!("{error} {error:?}")).unwrap_or_default();
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
        let access = file.access().await.unwrap();
        let error = cluster::client(access.config, None, None).err().expect("it can't be used");
        let said = unusable(error);
        // What would follow is the key, as numbers.
        assert!(said.ends_with("identity PEM is invalid"), "{said}");
    }

    #[tokio::test]
    async fn the_context_can_be_chosen() {
        let file = File::of(
            "contexts",
            "{apiVersion: v1, kind: Config, current-context: one, users: [{name: u, user: {token: t}}], \
              clusters: [{name: a, cluster: {server: 'http://a'}}, {name: b, cluster: {server: 'http://b'}}], \
              contexts: [{name: one, context: {cluster: a, user: u}}, {name: two, context: {cluster: b, user: u}}]}",
        );
        let server = async |context| file.access_of(context).await.unwrap().config.cluster_url.to_string();
        assert_eq!((server(None).await.as_str(), server(Some("two")).await.as_str()), ("http://a/", "http://b/"));
        let unknown = file.access_of(Some("three")).await.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(unknown.starts_with("the kubeconfig can't be used: ") && unknown.contains("three"), "{unknown}");
        let named = ClusterChoice { kubeconfig: Some(file.0.clone()), context: None };
        let elsewhere = |name: &str| (name == "KUBECONFIG").then(|| "/nowhere/kubeconfig".to_owned());
        assert!(cluster_access(&named, elsewhere).await.is_ok(), "the flag comes before the variable");
        assert_eq!(current_context(&named, elsewhere).as_deref(), Some("one"));
    }

    #[tokio::test]
    async fn the_fault_of_a_kubeconfig_is_the_answer() {
        let nowhere = |name: &str| (name == "KUBECONFIG").then(|| "/nowhere/kubeconfig".to_owned());
        let named = cluster_access(&ClusterChoice::default(), nowhere).await.err();
        let said = named.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.starts_with("the kubeconfig /nowhere/kubeconfig can't be read: No such file"), "{said}");
        let empty = File::of("empty", "").access().await.err().map(|error| error.to_string()).unwrap_or_default();
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
        let exec_proxy =
            |access: &ClusterAccess| access.config.auth_info.exec.clone().unwrap().cluster.unwrap().proxy_url;
        let none = File::of("none", &kubeconfig("", exec)).access().await.unwrap();
        assert_eq!((&none.proxy, &none.config.proxy_url, exec_proxy(&none)), (&None, &None, None));
        let own = File::of("own", &kubeconfig("    proxy-url: http://own:3128\n", exec)).access().await.unwrap();
        assert_eq!(own.proxy.as_ref().map(ToString::to_string).as_deref(), Some("http://own:3128/"));
        assert_eq!(exec_proxy(&own).as_deref(), Some("http://own:3128"));
        let bad = File::of("bad", &kubeconfig(&format!("    proxy-url: http://me:{SECRET} x\n"), exec)).access().await;
        let said = bad.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(said, "the kubeconfig's proxy-url names no proxy; write it as http://HOST:PORT");
    }
}
