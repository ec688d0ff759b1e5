/* TLS with NPN (draft-agl-tls-nextprotoneg-04) and ALPN through OpenSSL, for
   clients that know only NPN. rustls does not implement NPN. The feature
   `openssl-npn` of the crate compiles this file.

   A connection reads and writes memory: the Rust side moves the bytes between
   memory and the socket (src/transport/npn.rs). */

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>

#define HIDDEN __attribute__ ((visibility ("hidden")))

/* Results of microspdy_tls_read. A positive result is a number of bytes. */
#define NOTHING 0
#define CLOSED (-1)
#define FAILED (-2)

/* The names of both versions, each with its length. */
static const unsigned char protocols[] = "\x08spdy/3.1\x06spdy/3";
static const unsigned int protocols_length = sizeof (protocols) - 1;

HIDDEN SSL_CTX *microspdy_tls_context_new (const char *certfile,
                                           const char *keyfile);
HIDDEN void microspdy_tls_context_free (SSL_CTX *context);
HIDDEN SSL *microspdy_tls_new (SSL_CTX *context);
HIDDEN void microspdy_tls_free (SSL *tls);
HIDDEN int microspdy_tls_handshake (SSL *tls);
HIDDEN int microspdy_tls_read (SSL *tls, void *buffer, int length);
HIDDEN int microspdy_tls_write (SSL *tls, const void *bytes, int length);
HIDDEN int microspdy_tls_put (SSL *tls, const void *bytes, int length);
HIDDEN int microspdy_tls_take (SSL *tls, void *buffer, int length);
HIDDEN int microspdy_tls_version (SSL *tls);
HIDDEN void microspdy_tls_shutdown (SSL *tls);

static int
advertise (SSL *tls, const unsigned char **names, unsigned int *length,
           void *cls)
{
  (void) tls;
  (void) cls;
  *names = protocols;
  *length = protocols_length;
  return SSL_TLSEXT_ERR_OK;
}

static int
choose (SSL *tls, const unsigned char **chosen, unsigned char *chosen_length,
        const unsigned char *offered, unsigned int offered_length, void *cls)
{
  unsigned char *name;

  (void) tls;
  (void) cls;
  if (OPENSSL_NPN_NEGOTIATED
      != SSL_select_next_proto (&name, chosen_length, protocols,
                                protocols_length, offered, offered_length))
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = name;
  return SSL_TLSEXT_ERR_OK;
}

/* Loads PEM files. Returns NULL if one of them cannot be used. */
SSL_CTX *
microspdy_tls_context_new (const char *certfile, const char *keyfile)
{
  SSL_CTX *context = SSL_CTX_new (TLS_server_method ());

  if (NULL == context)
    return NULL;
  /* NPN has no place in TLS 1.3, and a server learns of NPN too late. */
  if (1 != SSL_CTX_set_min_proto_version (context, TLS1_2_VERSION)
      || 1 != SSL_CTX_set_max_proto_version (context, TLS1_2_VERSION)
      || 1 != SSL_CTX_use_certificate_chain_file (context, certfile)
      || 1 != SSL_CTX_use_PrivateKey_file (context, keyfile, SSL_FILETYPE_PEM)
      || 1 != SSL_CTX_check_private_key (context))
  {
    SSL_CTX_free (context);
    return NULL;
  }
  SSL_CTX_set_options (context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION
                                  | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode (context, SSL_MODE_ENABLE_PARTIAL_WRITE
                               | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
                               | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_next_protos_advertised_cb (context, &advertise, NULL);
  SSL_CTX_set_alpn_select_cb (context, &choose, NULL);
  return context;
}

void
microspdy_tls_context_free (SSL_CTX *context)
{
  SSL_CTX_free (context);
}

/* Begins a handshake. Returns NULL without memory. */
SSL *
microspdy_tls_new (SSL_CTX *context)
{
  SSL *tls = SSL_new (context);
  BIO *input = BIO_new (BIO_s_mem ());
  BIO *output = BIO_new (BIO_s_mem ());

  if (NULL == tls || NULL == input || NULL == output)
  {
    SSL_free (tls);
    BIO_free (input);
    BIO_free (output);
    return NULL;
  }
  /* An empty BIO asks for more, instead of reporting the end. */
  BIO_set_mem_eof_return (input, -1);
  BIO_set_mem_eof_return (output, -1);
  SSL_set_bio (tls, input, output);
  SSL_set_accept_state (tls);
  return tls;
}

void
microspdy_tls_free (SSL *tls)
{
  SSL_free (tls);
}

/* Returns NOTHING, CLOSED or FAILED for a call without bytes. SSL_get_error
   reads the error queue of the thread, which all connections share. The caller
   therefore clears the queue before each call of OpenSSL. */
static int
outcome (SSL *tls, int result)
{
  switch (SSL_get_error (tls, result))
  {
  case SSL_ERROR_WANT_READ:
  case SSL_ERROR_WANT_WRITE:
    return NOTHING;
  case SSL_ERROR_ZERO_RETURN:
    return CLOSED;
  default:
    return FAILED;
  }
}

/* Continues the handshake. Returns 1 once it has ended. */
int
microspdy_tls_handshake (SSL *tls)
{
  int result;

  ERR_clear_error ();
  result = SSL_do_handshake (tls);
  return 1 == result ? 1 : outcome (tls, result);
}

int
microspdy_tls_read (SSL *tls, void *buffer, int length)
{
  int result;

  ERR_clear_error ();
  result = SSL_read (tls, buffer, length);
  return result > 0 ? result : outcome (tls, result);
}

int
microspdy_tls_write (SSL *tls, const void *bytes, int length)
{
  int result;

  ERR_clear_error ();
  result = SSL_write (tls, bytes, length);
  return result > 0 ? result : outcome (tls, result);
}

/* Takes bytes of the client. Returns their number, or FAILED. */
int
microspdy_tls_put (SSL *tls, const void *bytes, int length)
{
  int result = BIO_write (SSL_get_rbio (tls), bytes, length);

  return result == length ? result : FAILED;
}

/* Stores bytes for the client. Returns their number, or NOTHING. */
int
microspdy_tls_take (SSL *tls, void *buffer, int length)
{
  int result = BIO_read (SSL_get_wbio (tls), buffer, length);

  return result > 0 ? result : NOTHING;
}

/* Returns 31 for SPDY/3.1, 30 for SPDY/3, and 0 if neither was negotiated. */
int
microspdy_tls_version (SSL *tls)
{
  const unsigned char *name = NULL;
  unsigned int length = 0;

  SSL_get0_alpn_selected (tls, &name, &length);
  if (0 == length)
    SSL_get0_next_proto_negotiated (tls, &name, &length);
  if (8 == length && 0 == memcmp (name, "spdy/3.1", length))
    return 31;
  if (6 == length && 0 == memcmp (name, "spdy/3", length))
    return 30;
  return 0;
}

/* Announces the end of our side. */
void
microspdy_tls_shutdown (SSL *tls)
{
  ERR_clear_error ();
  SSL_shutdown (tls);
}
