//! Gives the UDP tunnels of HTTP programs the authority of their target (CONNECT-UDP, RFC 9298
//! section 3).
//!
//! A program names its proxy in the authority, and the target in the path. The stages behind this
//! one choose routes and write logs by the authority, so both name the target from here on.

use std::rc::Rc;

use tandem_http::connect_udp;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Reply};
use crate::stage::Stage;

/// The stage that names the target in the authority. It refuses a request without one.
pub struct UdpTarget {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for UdpTarget {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if connect_udp::is_request(&exchange.request)
            && !connect_udp::name_target(exchange.request_mut())
        {
            let detail = "the path names no host and port for UDP";
            return Reply::fail(Error::new(Kind::BadRequest, Side::Client, detail));
        }
        self.next.call(exchange)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::*;
    use crate::exchange::Part;

    /// Returns the authority that the stage behind sees, or the kind of the refusal.
    async fn authority(request: RequestHead) -> Result<Bytes, Kind> {
        let next = |exchange: Exchange| {
            let authority = exchange.request.authority.clone();
            Reply::ready(ResponseHead::new(200), authority.into())
        };
        let stage = UdpTarget {
            next: Rc::new(next),
        };
        let mut reply = stage.call(Exchange::internal(request));
        while let Some(part) = reply.part().await {
            match part {
                Ok(Part::Data(data)) => return Ok(data),
                Ok(_) => {}
                Err(error) => return Err(error.kind),
            }
        }
        panic!("a reply without an end")
    }

    #[tokio::test]
    async fn udp_target_names_the_host_of_the_path() {
        let to_proxy = |path: &str| RequestHead {
            authority: "proxy.test".to_owned(),
            path: path.to_owned(),
            ..connect_udp::request("a.test", 53)
        };
        let path = "/.well-known/masque/udp/B.test/53";
        assert_eq!(authority(to_proxy(path)).await, Ok("b.test:53".into()));
        assert_eq!(authority(to_proxy("/")).await, Err(Kind::BadRequest));
        let other = RequestHead::get(Scheme::Http, "proxy.test", path);
        assert_eq!(authority(other).await, Ok("proxy.test".into()));
    }
}
