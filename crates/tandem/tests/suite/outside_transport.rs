//! A transport that another crate adds to the registry: TCP with inverted bytes.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tandem::endpoint::Endpoint;
use tandem::error::Error;
use tandem::exchange::Isolation;
use tandem::path::Path;
use tandem::runtime::Running;
use tandem::transport::registry::{
    DialContext, Dials, ListenContext, Listens, Provider, Socket, TransportError, Transports,
};
use tandem::transport::tcp::Tcp;
use tandem::transport::{Dial, Incoming, Listen, Listener, LocalBoxFuture, Target};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::harness::{block_on, endpoint};

/// A transport of another crate: TCP with inverted bytes.
struct Inverting<B>(B);

struct Inverted(Path);

impl AsyncRead for Inverted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let from = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.0).poll_read(cx, buf))?;
        buf.filled_mut()[from..]
            .iter_mut()
            .for_each(|byte| *byte = !*byte);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Inverted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let inverted: Vec<u8> = buf.iter().map(|byte| !byte).collect();
        Pin::new(&mut self.0).poll_write(cx, &inverted)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn inverted(path: Path) -> Path {
    let facts = Rc::clone(path.facts());
    Path::new(Inverted(path), facts)
}

impl Dial for Inverting<Rc<dyn Dial>> {
    fn below(&self) -> Option<&dyn Dial> {
        Some(&*self.0)
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move { Ok(inverted(self.0.dial(target, isolation).await?)) })
    }
}

impl Listen for Inverting<Tcp> {
    fn listen(&self, socket: Socket) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(InvertingListener(self.0.listen(socket)?)))
    }
}

struct InvertingListener(Box<dyn Listener>);

impl Listener for InvertingListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Incoming>> {
        self.0.poll_accept(cx).map_ok(|incoming| Incoming {
            address: incoming.address,
            carrier: Box::pin(
                async move { Ok(inverted(incoming.carrier.await?.into_bytes()?).into()) },
            ),
        })
    }
}

struct InvertingProvider;

impl Provider for InvertingProvider {
    fn name(&self) -> &'static str {
        "inverted"
    }
}

impl Dials for InvertingProvider {
    fn dialling(&self, _: &Endpoint, context: DialContext) -> Result<Rc<dyn Dial>, TransportError> {
        Ok(Rc::new(Inverting(context.streams)))
    }
}

impl Listens for InvertingProvider {
    fn listening(
        &self,
        _: &Endpoint,
        context: ListenContext<'_>,
    ) -> Result<Box<dyn Listen>, TransportError> {
        Ok(Box::new(Inverting(Tcp {
            options: context.socket,
            pinned: None,
        })))
    }
}

#[test]
fn registry_carries_a_transport_from_outside() {
    use crate::harness::{Client, Scene, client_options, gateway_options};
    let mut transports = Transports::default();
    let listen = endpoint("h2+inverted://127.0.0.1:0");
    let mut options = gateway_options();
    options.listen = vec![listen.clone()];
    let error = options
        .clone()
        .typed_with(&transports)
        .unwrap_err()
        .to_string();
    assert!(error.contains("unknown transport \"inverted\""), "{error}");
    transports.add(InvertingProvider);
    let config = options.typed_with(&transports).unwrap();
    let gateway = block_on(Running::start(Arc::new(config))).unwrap();
    let address = gateway.address(&listen).unwrap();
    let http = endpoint("http://127.0.0.1:0");
    let mut options = client_options(&format!("h2+inverted://{address}"));
    options.listen = vec![http.clone()];
    let config = options.typed_with(&transports).unwrap();
    let client = block_on(Running::start(Arc::new(config))).unwrap();
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let answer = Client::to(client.address(&http).unwrap()).get(&origin.url("/"));
    assert_eq!((answer.status, &answer.body[..]), (200, &b"ok"[..]));
    for running in [client, gateway] {
        block_on(running.drain(Duration::ZERO));
    }
}
