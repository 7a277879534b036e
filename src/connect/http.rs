//! HTTP to AWS: one client for all of its services, through a proxy where the environment names one.

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::{Builder, Connector, tls};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;

const TLS: tls::Provider = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc);

/// What may name the proxy; the first that is set does.
const PROXY: [&str; 4] = [KUBES_PROXY[0], KUBES_PROXY[1], "ALL_PROXY", "all_proxy"];

/// Those of them that kube reads, too.
const KUBES_PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];

/// What may name AWS's endpoints: all, or those of one service.
const ENDPOINTS: [&str; 10] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_SQS",
    "AWS_ENDPOINT_URL_AUTO_SCALING",
    "AWS_ENDPOINT_URL_EC2",
    "AWS_ENDPOINT_URL_STS",
    "AWS_ENDPOINT_URL_EVENTBRIDGE",
    "AWS_ENDPOINT_URL_CLOUDWATCH",
    "AWS_ENDPOINT_URL_SSO",
    "AWS_ENDPOINT_URL_SSO_OIDC",
    "AWS_ENDPOINT_URL_SIGNIN",
];

/// A variable that leads nowhere. Its value is not repeated: it may hold a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVariable {
    /// It names no proxy.
    #[error("{0} names no proxy; write it as http://HOST:PORT")]
    Proxy(&'static str),
    /// It names no endpoint.
    #[error("{0} names no endpoint; write it as https://HOST, or take the variable away")]
    Endpoint(&'static str),
}

/// The client, with the proxy that the environment names.
///
/// # Errors
/// When what it names can't be one, or an endpoint that it names can't.
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

/// The proxy for HTTPS, which is what AWS's services are asked by. Those who give out credentials are asked by HTTP, on the node
/// itself, where no proxy gets to: that is why the environment is not handed over as it is.
fn proxy(variable: impl Fn(&str) -> Option<String>) -> Result<Option<ProxyConfig>, BadVariable> {
    let set = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let Some((name, url)) = PROXY.iter().find_map(|name| Some((*name, set(name)?))) else { return Ok(None) };
    // As everywhere, HOST:PORT will do.
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    let proxy = ProxyConfig::https(url).map_err(|_| BadVariable::Proxy(name))?;
    Ok(Some(proxy.no_proxy(around(&variable))))
}

/// The proxy for the API server: `found` is kube's, of the kubeconfig or of the environment. Of the latter kube takes no `HOST:PORT`,
/// and asks whether `NO_PROXY` names the proxy, where it should ask for the server.
pub fn to_api_server(found: Option<Uri>, server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<Uri> {
    let found = found?;
    let of_environment = |name: &&str| variable(name).is_some_and(|url| url.parse().is_ok_and(|url: Uri| url == found));
    if !KUBES_PROXY.iter().any(of_environment) {
        return Some(found);
    }
    let matcher = Matcher::builder().all("http://proxy").no(around(&variable)).build();
    matcher.intercept(server)?;
    if found.scheme().is_some() { Some(found) } else { format!("http://{found}").parse().ok() }
}

/// What is asked directly, as `NO_PROXY` says. Many write `*.NAME` for `.NAME`, and some a port, which the client does not know.
fn around(variable: impl Fn(&str) -> Option<String>) -> String {
    let names = ["NO_PROXY", "no_proxy"].iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
    let known = |name: &str| {
        let name = name.trim();
        let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
        match name.split_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host.to_owned(),
            _ => name.to_owned(),
        }
    };
    names.unwrap_or_default().split(',').map(known).collect::<Vec<_>>().join(",")
}

/// With an endpoint that is none the SDKs' calls panic, and with one set to nothing, too.
fn endpoints(variable: impl Fn(&str) -> Option<String>) -> Result<(), BadVariable> {
    if variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|ignore| ignore.eq_ignore_ascii_case("true")) {
        return Ok(());
    }
    let leads_nowhere = |url: String| {
        let url = url.parse::<Uri>().ok();
        !url.is_some_and(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some())
    };
    let bad = ENDPOINTS.into_iter().find(|name| variable(name).is_some_and(leads_nowhere));
    bad.map_or(Ok(()), |name| Err(BadVariable::Endpoint(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment that has these variables, and no other.
    fn environment(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn named(variables: &[(&str, &str)]) -> Result<bool, BadVariable> {
        proxy(environment(variables)).map(|proxy| proxy.is_some())
    }

    #[test]
    fn a_proxy_is_named_by_the_usual_variables() {
        for variables in [
            ("HTTPS_PROXY", "http://proxy.example:3128"),
            ("https_proxy", "https://user:word@proxy.example"),
            ("ALL_PROXY", "proxy.example:3128"),
            ("all_proxy", " http://10.0.0.1:3128/ "),
        ] {
            assert_eq!(named(&[variables]), Ok(true), "{variables:?}");
        }
        // Charts set what they have no value for to nothing; and what is asked by HTTP is on the node.
        assert_eq!(
            named(&[("HTTPS_PROXY", ""), ("HTTP_PROXY", "http://proxy.example:3128"), ("NO_PROXY", "*")]),
            Ok(false)
        );
    }

    #[test]
    fn what_is_no_proxy_is_named_without_its_password() {
        for value in ["socks5://user:word@proxy.example", "http://", "http://a b", "http://user:word@proxy example"] {
            let refused = named(&[("HTTPS_PROXY", value)]).unwrap_err();
            assert_eq!(refused, BadVariable::Proxy("HTTPS_PROXY"), "{value}");
            assert!(!refused.to_string().contains("word"));
        }
    }

    const SQS: &str = "https://sqs.eu-west-1.amazonaws.com/";

    #[test]
    fn what_is_not_to_go_through_the_proxy_does_not() {
        let direct = |names: &str, url: &str| {
            let around = around(environment(&[("NO_PROXY", names)]));
            Matcher::builder().all("http://proxy").no(around).build().intercept(&url.parse().unwrap()).is_none()
        };
        for names in ["sqs.eu-west-1.amazonaws.com", ".amazonaws.com", "x, *.amazonaws.com ", "amazonaws.com:443", "*"]
        {
            assert!(direct(names, SQS), "{names}");
        }
        assert!(direct("10.0.0.0/8", "https://10.0.0.1:6443/") && direct("fd00::/8", "https://[fd00::1]/"));
        for names in ["", "sqs", "*.example.com", "10.0.0.0/8"] {
            assert!(!direct(names, SQS), "{names}");
        }
    }

    #[test]
    fn the_api_server_is_asked_through_the_proxy_that_is_for_it() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let through = |found: &str, variables: &[(&str, &str)]| {
            let server = uri("https://10.0.0.1:6443/");
            to_api_server(Some(uri(found)), &server, environment(variables)).map(|proxy| proxy.to_string())
        };
        let set = ("HTTPS_PROXY", "proxy:3128");
        assert_eq!(through("proxy:3128", &[set]).as_deref(), Some("http://proxy:3128/"));
        assert_eq!(through("proxy:3128", &[set, ("NO_PROXY", "10.0.0.0/8")]), None);
        // The kubeconfig's own is for this server, whatever the environment says.
        let own = through("http://own:3128/", &[set, ("NO_PROXY", "10.0.0.0/8")]);
        assert_eq!(own.as_deref(), Some("http://own:3128/"));
        assert_eq!(to_api_server(None, &uri("https://10.0.0.1:6443/"), |_| None), None);
    }

    #[test]
    fn an_endpoint_is_a_url() {
        let said = |value: &str| endpoints(|name| (name == "AWS_ENDPOINT_URL_SQS").then(|| value.to_owned()));
        for value in ["http://127.0.0.1:5000", "https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com/"] {
            assert_eq!(said(value), Ok(()), "{value}");
        }
        let ignored = |name: &str| Some(if name.starts_with("AWS_IGNORE") { "true" } else { "" }.to_owned());
        assert_eq!(endpoints(ignored), Ok(()));
        for value in ["", " ", "localhost:4566", "/sqs", "ftp://host", "https://"] {
            assert_eq!(said(value), Err(BadVariable::Endpoint("AWS_ENDPOINT_URL_SQS")), "{value}");
        }
    }
}
