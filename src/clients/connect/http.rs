//! HTTP to AWS: one client for all services, through the proxy of the environment. And the proxy to the API server.

use super::ConnectError;
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::{Builder, Connector, tls};
use aws_smithy_runtime_api::client::http::{HttpConnectorSettings, SharedHttpClient, SharedHttpConnector};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use std::net::IpAddr;
use std::time::Duration;

const TLS: tls::Provider = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc);

/// Variables that name the proxy to AWS. The first that is set counts.
const AWS_PROXY: [&str; 4] = [KUBE_PROXY[0], KUBE_PROXY[1], "ALL_PROXY", "all_proxy"];

/// Variables that name the proxy to the API server, as for kubectl.
const KUBE_PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];

/// The setting that names the proxy to the receiver of notifications.
const WEBHOOK_PROXY: &str = "--notify-proxy";

/// Variables that name AWS's endpoints: of all services, or of one.
const ENDPOINTS: [&str; 10] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_SQS",
    "AWS_ENDPOINT_URL_AUTO_SCALING",
    "AWS_ENDPOINT_URL_EC2",
    "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2",
    "AWS_ENDPOINT_URL_STS",
    "AWS_ENDPOINT_URL_EVENTBRIDGE",
    "AWS_ENDPOINT_URL_SSO",
    "AWS_ENDPOINT_URL_SSO_OIDC",
    "AWS_ENDPOINT_URL_SIGNIN",
];

/// A variable with a wrong value. The value is not repeated: it may contain a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVariable {
    /// The variable names no proxy.
    #[error("{0} names no proxy; write it as http://HOST:PORT")]
    Proxy(&'static str),
    /// The variable names no endpoint.
    #[error("{0} names no endpoint; write it as https://HOST, or take the variable away")]
    Endpoint(&'static str),
}

/// Makes the client, with the proxy of the environment.
///
/// # Errors
/// When a variable names no proxy or no endpoint.
pub fn client(variable: impl Fn(&str) -> Option<String>) -> Result<SharedHttpClient, BadVariable> {
    endpoints(&variable)?;
    let Some(proxy) = proxy(variable)? else {
        return Ok(Builder::new().tls_provider(TLS).build_https());
    };
    Ok(Builder::new().build_with_connector_fn(move |settings, components| {
        let mut connector = Connector::builder();
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
        connector.tls_provider(TLS).proxy_config(proxy.clone()).build()
    }))
}

/// Makes the client for webhooks: a part of the one for AWS, which follows no redirects. `own` is the proxy of the settings, which
/// always counts, for HTTP as well; else the environment's is used for HTTPS.
///
/// # Errors
/// When a variable names no proxy, or `own` is none.
pub fn webhook(
    own: Option<&str>,
    connect_timeout: Duration,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<SharedHttpConnector, BadVariable> {
    let proxy = match own {
        Some(own) => {
            let own = proxy_of(own.trim()).and_then(|own| ProxyConfig::all(own).ok());
            Some(own.ok_or(BadVariable::Proxy(WEBHOOK_PROXY))?)
        }
        None => proxy(variable)?,
    };
    let settings = HttpConnectorSettings::builder().connect_timeout(connect_timeout).build();
    let mut connector = Connector::builder().connector_settings(settings).sleep_impl(TokioSleep::new());
    connector.set_proxy_config(proxy);
    // One receiver, and one request at a time.
    connector.set_pool_max_idle_per_host(Some(1));
    Ok(SharedHttpConnector::new(connector.tls_provider(TLS).build()))
}

/// Whether this text names a proxy.
#[must_use]
pub fn is_proxy(url: &str) -> bool {
    proxy_of(url.trim()).is_some()
}

/// Returns the proxy for HTTPS, which all AWS services use. The endpoints for credentials use HTTP on the node itself, which no proxy
/// reaches: so the SDK is not given the environment as it is.
fn proxy(variable: impl Fn(&str) -> Option<String>) -> Result<Option<ProxyConfig>, BadVariable> {
    let Some((name, url)) = named(&AWS_PROXY, &variable)? else { return Ok(None) };
    let proxy = ProxyConfig::https(url).map_err(|_| BadVariable::Proxy(name))?;
    Ok(Some(proxy.no_proxy(no_proxy(&variable))))
}

/// Returns the first of these variables that is set, and the proxy that it names.
fn named(
    names: &[&'static str],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<(&'static str, String)>, BadVariable> {
    let set = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let Some((name, url)) = names.iter().find_map(|name| Some((*name, set(name)?))) else { return Ok(None) };
    proxy_of(&url).map(|url| Some((name, url))).ok_or(BadVariable::Proxy(name))
}

/// Returns the URL of a proxy. `HOST:PORT` is accepted as well.
fn proxy_of(url: &str) -> Option<String> {
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    // A proxy's URL needs no path. A path with an @ is the end of a password with a slash.
    let behind = url.split_once("://").and_then(|(_, rest)| rest.split_once(['/', '?', '#']));
    (is_http_url(&url) && !behind.is_some_and(|(_, rest)| rest.contains('@'))).then_some(url)
}

/// Whether this is a URL of HTTP or HTTPS with a valid host and port. The parser would ignore an invalid port.
fn is_http_url(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    let Some(authority) = url.authority() else { return false };
    let host = authority.as_str().rsplit(['@', ']']).next().unwrap_or_default();
    let port = host.split_once(':').map_or("", |(_, port)| port);
    matches!(url.scheme_str(), Some("http" | "https"))
        && !authority.host().is_empty()
        && (port.is_empty() || authority.port_u16().is_some())
}

/// Returns the proxy for the API server, as kubectl does. `own` is the kubeconfig's, which always counts. The environment's proxy is not
/// used for servers on this machine, nor without TLS.
///
/// # Errors
/// When the kubeconfig or a variable names no proxy.
pub fn to_api_server(
    own: Option<Uri>,
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Intercept>, ConnectError> {
    if let Some(own) = own {
        let own = proxy_of(&own.to_string()).ok_or(ConnectError::BadClusterProxy)?;
        return Ok(Matcher::builder().all(own).build().intercept(server));
    }
    if is_local(server) {
        return Ok(None);
    }
    let Some((_, url)) = named(&KUBE_PROXY, &variable)? else { return Ok(None) };
    // This proxy is for HTTPS only.
    Ok(Matcher::builder().https(url).no(no_proxy(&variable)).build().intercept(server))
}

/// Whether the server is on this machine.
fn is_local(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the hosts that need no proxy, from `NO_PROXY`. Forms that the client does not know are accepted as well: `*.NAME` for
/// `.NAME`, ports, and brackets around IPv6 addresses.
fn no_proxy(variable: impl Fn(&str) -> Option<String>) -> String {
    let names = ["NO_PROXY", "no_proxy"].iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let known = |name: &str| {
        let name = name.trim();
        // For the client, `*` means all names but no addresses.
        if name == "*" {
            return "*,0.0.0.0/0,::/0".to_owned();
        }
        let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        match name.strip_prefix('[').and_then(|name| name.split_once(']')) {
            Some((address, port)) if port.is_empty() || port.strip_prefix(':').is_some_and(is_port) => address,
            _ => name.split_once(':').filter(|(_, port)| is_port(port)).map_or(name, |(host, _)| host),
        }
        .to_owned()
    };
    names.unwrap_or_default().split(',').map(known).collect::<Vec<_>>().join(",")
}

/// Checks the endpoints: the SDKs panic on a malformed or empty one.
fn endpoints(variable: impl Fn(&str) -> Option<String>) -> Result<(), BadVariable> {
    if variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|ignore| ignore.eq_ignore_ascii_case("true")) {
        return Ok(());
    }
    let bad = ENDPOINTS.into_iter().find(|name| variable(name).is_some_and(|url| !is_http_url(&url)));
    bad.map_or(Ok(()), |name| Err(BadVariable::Endpoint(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment that has these variables, and no other.
    fn environment(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn there_is_one(variables: &[(&str, &str)]) -> Result<bool, BadVariable> {
        proxy(environment(variables)).map(|proxy| proxy.is_some())
    }

    #[test]
    fn a_proxy_is_named_by_the_usual_variables() {
        for variables in [
            ("HTTPS_PROXY", "http://proxy.example:3128"),
            ("https_proxy", "https://user:word@proxy.example"),
            ("ALL_PROXY", "proxy.example:3128"),
            ("all_proxy", " http://10.0.0.1:3128/ "),
            ("HTTPS_PROXY", "http://user:w%2Frd@[fd00::1]:3128"),
            ("HTTPS_PROXY", "http://[fd00::1]"),
        ] {
            assert_eq!(there_is_one(&[variables]), Ok(true), "{variables:?}");
        }
        // Charts set variables without a value to the empty text, and HTTP is only spoken to the node itself.
        assert_eq!(
            there_is_one(&[("HTTPS_PROXY", ""), ("HTTP_PROXY", "http://proxy.example:3128"), ("NO_PROXY", "*")]),
            Ok(false)
        );
    }

    #[test]
    fn what_is_no_proxy_is_named_without_its_password() {
        for value in [
            "socks5://user:word@proxy.example",
            "http://",
            "http://a b",
            "http://user:word@proxy example",
            // An invalid port would be left out, and port 80 used.
            "http://proxy:31Z8",
            "http://user:word@proxy:70000",
            "https://[fd00::1]:x",
            // The password's end would be the path, and the user the host.
            "http://user:word/s@proxy:3128",
            "http://user:1/word@proxy:3128",
            "user:1?word@proxy",
            "http://user:2#word@proxy",
        ] {
            let refused = there_is_one(&[("HTTPS_PROXY", value)]).unwrap_err();
            assert_eq!(refused, BadVariable::Proxy("HTTPS_PROXY"), "{value}");
            assert!(!refused.to_string().contains("word"));
        }
    }

    const SQS: &str = "https://sqs.eu-west-1.amazonaws.com/";

    #[test]
    fn what_is_not_to_go_through_the_proxy_does_not() {
        let direct = |names: &str, url: &str| {
            let no_proxy = no_proxy(environment(&[("NO_PROXY", names)]));
            Matcher::builder().all("http://proxy").no(no_proxy).build().intercept(&url.parse().unwrap()).is_none()
        };
        for names in ["sqs.eu-west-1.amazonaws.com", ".amazonaws.com", "x, *.amazonaws.com ", "amazonaws.com:443", "*"]
        {
            assert!(direct(names, SQS), "{names}");
        }
        assert!(direct("10.0.0.0/8", "https://10.0.0.1:6443/") && direct("fd00::/8", "https://[fd00::1]/"));
        for names in ["[fd00::1]:6443", "[fd00::1]", "fd00::1", "a,,*", "x, [fd00::1]:443,"] {
            assert!(direct(names, "https://[fd00::1]:6443/"), "{names}");
        }
        for names in ["", "sqs", "*.example.com", "10.0.0.0/8"] {
            assert!(!direct(names, SQS), "{names}");
        }
    }

    /// The proxy that is asked for the API server, with its word.
    fn through(own: Option<&str>, server: &str, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let proxy = to_api_server(own.map(uri), &uri(server), environment(variables));
        let proxy = proxy.map_err(|error| error.to_string())?;
        let word = |proxy: &Intercept| proxy.basic_auth().map_or("", |_| " with a word");
        Ok(proxy.map(|proxy| format!("{}{}", proxy.uri(), word(&proxy))))
    }

    #[test]
    fn the_api_server_is_asked_through_the_proxy_that_is_for_it() {
        let (eks, set) = ("https://1234.eks.amazonaws.com/", ("HTTPS_PROXY", "10.1.2.3:3128"));
        let by_environment = |variables: &[(&str, &str)]| through(None, eks, variables).unwrap();
        assert_eq!(by_environment(&[]), None);
        assert_eq!(by_environment(&[set]).as_deref(), Some("http://10.1.2.3:3128/"));
        // It is about the server, not about the proxy.
        for names in ["10.0.0.0/8", "10.1.2.3", "a,b,", "other.example"] {
            assert_eq!(
                by_environment(&[set, ("NO_PROXY", names)]).as_deref(),
                Some("http://10.1.2.3:3128/"),
                "{names}"
            );
        }
        for names in [".eks.amazonaws.com", "*", "a,*", "*.amazonaws.com:443,"] {
            assert_eq!(by_environment(&[set, ("no_proxy", names)]), None, "{names}");
        }
        assert_eq!(by_environment(&[("ALL_PROXY", "10.1.2.3:3128")]), None, "kubectl does not know it");
        let word = by_environment(&[("https_proxy", " http://me:w%40rd@proxy:3128 ")]);
        assert_eq!(word.as_deref(), Some("http://proxy:3128/ with a word"));
        assert!(through(None, eks, &[("HTTPS_PROXY", "http://me:word@x:y")]).unwrap_err().starts_with("HTTPS_PROXY"));
    }

    #[test]
    fn what_is_here_or_without_tls_is_asked_directly() {
        let set = [("HTTPS_PROXY", "http://proxy:3128"), ("HTTP_PROXY", "http://proxy:3128")];
        for server in [
            "https://127.0.0.1:6443",
            "https://127.1.2.3",
            "https://[::1]:6443",
            "https://localhost:6443",
            "http://10.0.0.1:8001",
        ] {
            assert_eq!(through(None, server, &set), Ok(None), "{server}");
        }
    }

    #[test]
    fn the_kubeconfigs_own_proxy_is_for_its_server() {
        let set = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", "*")];
        for server in ["https://10.0.0.1:6443", "https://127.0.0.1:6443", "http://10.0.0.1:8001"] {
            assert_eq!(through(Some("http://own:3128"), server, &set), Ok(Some("http://own:3128/".into())), "{server}");
        }
        for own in ["socks5://me:word@own", "http://me:word@own:70000", "http://me:1/word@own:3128"] {
            let refused = through(Some(own), "https://10.0.0.1:6443", &[]).unwrap_err();
            assert_eq!(refused, "the kubeconfig's proxy-url names no proxy; write it as http://HOST:PORT", "{own}");
        }
    }

    #[test]
    fn an_endpoint_is_a_url() {
        let said = |value: &str| endpoints(|name| (name == "AWS_ENDPOINT_URL_SQS").then(|| value.to_owned()));
        for value in ["http://127.0.0.1:5000", "https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com/"] {
            assert_eq!(said(value), Ok(()), "{value}");
        }
        let ignored = |name: &str| Some(if name.starts_with("AWS_IGNORE") { "true" } else { "" }.to_owned());
        assert_eq!(endpoints(ignored), Ok(()));
        for value in ["", " ", "localhost:4566", "/sqs", "ftp://host", "https://", "http://a:45Z6", "https://a:70000"] {
            assert_eq!(said(value), Err(BadVariable::Endpoint("AWS_ENDPOINT_URL_SQS")), "{value}");
        }
    }
}
