//! `link LISTEN TARGET ROUND_TRIP_MS MB_PER_S`: a TCP proxy with delay and bandwidth. It prints its
//! address, and for each line of standard input the bytes that came from the target so far.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::time::Duration;
use weald_testkit::link::{Link, LinkOptions};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target, delay, rate] = words.as_slice() else {
        panic!("expected LISTEN TARGET ROUND_TRIP_MS MB_PER_S");
    };
    let number = |word: &String| word.parse::<f64>().expect("a number");
    let options = LinkOptions {
        delay: Duration::from_secs_f64(number(delay) / 2000.0),
        rate: (number(rate) * 1e6) as u64,
        cut_after: 0,
    };
    let listener = TcpListener::bind(listen).expect("a free port");
    let target = target.parse().expect("an address");
    let link = Link::listen(listener, target, options).expect("a link");
    println!("{}", link.address());
    for _line in std::io::stdin().lines() {
        println!("{}", link.received_len());
    }
}
