//! Options that say what stays when old things are removed by age.

use anyhow::bail;
use clap::Args;
use weald_volume::retention::{Period, Retention};

/// How many to keep of each period.
#[derive(Args, Debug)]
pub struct KeepArgs {
    /// Keep this many of the newest
    #[arg(long, value_name = "N")]
    keep_last: Option<u64>,
    /// Keep the newest of each of this many hours
    #[arg(long, value_name = "N")]
    keep_hourly: Option<u64>,
    /// Keep the newest of each of this many days
    #[arg(long, value_name = "N")]
    keep_daily: Option<u64>,
    /// Keep the newest of each of this many weeks
    #[arg(long, value_name = "N")]
    keep_weekly: Option<u64>,
    /// Keep the newest of each of this many months
    #[arg(long, value_name = "N")]
    keep_monthly: Option<u64>,
    /// Keep the newest of each of this many years
    #[arg(long, value_name = "N")]
    keep_yearly: Option<u64>,
}

impl KeepArgs {
    /// The rules, of which one at least must keep something.
    pub fn rules(&self) -> anyhow::Result<Retention> {
        let rules = [
            (Period::Last, self.keep_last),
            (Period::Hour, self.keep_hourly),
            (Period::Day, self.keep_daily),
            (Period::Week, self.keep_weekly),
            (Period::Month, self.keep_monthly),
            (Period::Year, self.keep_yearly),
        ];
        let rules = rules.into_iter();
        let rules = Retention::new(rules.filter_map(|(period, count)| Some((period, count?))));
        if rules.keeps_nothing() {
            bail!("nothing would be kept: name what to keep, as in --keep-daily 7");
        }
        Ok(rules)
    }
}
