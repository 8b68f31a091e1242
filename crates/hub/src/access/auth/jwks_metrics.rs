//! Metrics about keys fetched from URLs.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::access::auth::jwks::IssuerKeys;

/// Metrics about issuers' keys, for `/metrics`. The labels are the issuers in the options.
#[derive(Debug)]
pub(crate) struct IssuerMetrics(pub(crate) Arc<IssuerKeys>);

impl Collector for IssuerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests for the keys of issuers, by result";
        let mut family = encoder.encode_descriptor("sinews_jwks_fetches", help, None, MetricType::Counter)?;
        for report in self.0.report() {
            for (result, count) in [("ok", report.fetched), ("failed", report.failed)] {
                let labels = [("issuer", report.issuer), ("result", result)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Keys of issuers that verify tokens";
        let mut family = encoder.encode_descriptor("sinews_jwks_keys", help, None, MetricType::Gauge)?;
        for report in self.0.report() {
            let keys = ConstGauge::new(i64::try_from(report.keys).unwrap_or(i64::MAX));
            keys.encode(family.encode_family(&[("issuer", report.issuer)])?)?;
        }
        let help = "Age of the keys of issuers in seconds";
        let mut family =
            encoder.encode_descriptor("sinews_jwks_age_seconds", help, None, MetricType::Gauge)?;
        for report in self.0.report() {
            let Some(age) = report.age else { continue };
            let age = ConstGauge::new(age.as_secs_f64());
            age.encode(family.encode_family(&[("issuer", report.issuer)])?)?;
        }
        Ok(())
    }
}
