/* One event loop for two daemons, with the events of their sessions.

     event_loop PORT-A PORT-B [SECONDS]

   Each session gets a ping with its first request, and is told that it may have
   32 streams. Daemon A answers with the number of the client's requests. Daemon
   B closes the session after its answer. Both close sessions that are silent for
   SECONDS, if that is given. The program prints each event.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#include "example.h"

/* The facts of a session, stored with it. */
struct visitor
{
  char daemon;
  unsigned int requests;
};

static void
say (char daemon, const char *event)
{
  printf ("%c %s\n", daemon, event);
  fflush (stdout);
}

static void
on_session (void *cls, struct SPDY_Session *session)
{
  struct visitor *visitor = calloc (1, sizeof (struct visitor));
  struct sockaddr *address;

  if (NULL == visitor || 0 == SPDY_get_remote_addr (session, &address)
      || AF_INET != address->sa_family)
  {
    free (visitor);
    SPDY_close_session (session);
    return;
  }
  visitor->daemon = *(const char *) cls;
  SPDY_set_cls_to_session (session, visitor);
  say (visitor->daemon, "session");
}

static void
on_close (void *cls, struct SPDY_Session *session, int by_client)
{
  say (*(const char *) cls, by_client ? "closed by client" : "closed by us");
  free (SPDY_get_cls_from_session (session));
}

static void
on_pong (void *cls, struct SPDY_Session *session, struct timeval *rtt)
{
  const struct visitor *visitor = SPDY_get_cls_from_session (session);

  (void) cls;
  if (rtt->tv_sec >= 0 && rtt->tv_usec >= 0)
    say (visitor->daemon, "pong");
}

static void
greet (struct SPDY_Session *session)
{
  struct SPDY_Settings *settings
    = (struct SPDY_Settings *) SPDY_settings_create ();

  /* A session that closes takes neither of the two. */
  SPDY_settings_add (settings, SPDY_SETTINGS_MAX_CONCURRENT_STREAMS, 0, 32);
  SPDY_send_settings (session, settings, 0, 0);
  SPDY_send_ping (session, &on_pong, NULL);
  SPDY_settings_destroy (settings);
}

static void
on_sent (void *cls, struct SPDY_Response *response,
         struct SPDY_Request *request, enum SPDY_RESPONSE_RESULT status,
         bool streamopened)
{
  char daemon = *(const char *) cls;

  (void) streamopened;
  say (daemon, SPDY_RESPONSE_RESULT_SUCCESS == status ? "sent" : "not sent");
  if ('B' == daemon)
    SPDY_close_session (SPDY_get_session_for_request (request));
  SPDY_destroy_response (response);
  SPDY_destroy_request (request);
}

static void
on_request (void *cls, struct SPDY_Request *request, uint8_t priority,
            const char *method, const char *path, const char *version,
            const char *host, const char *scheme,
            struct SPDY_NameValue *headers, bool more)
{
  struct SPDY_Session *session = SPDY_get_session_for_request (request);
  struct visitor *visitor = SPDY_get_cls_from_session (session);
  struct SPDY_Response *response;
  char text[32];

  (void) priority;
  (void) method;
  (void) path;
  (void) version;
  (void) host;
  (void) scheme;
  (void) headers;
  (void) more;
  if (NULL == visitor)
  {
    SPDY_destroy_request (request);
    return;
  }
  if (0 == visitor->requests++)
    greet (session);
  snprintf (text, sizeof (text), "request %u\n", visitor->requests);
  response = SPDY_build_response (SPDY_HTTP_OK, NULL, SPDY_HTTP_VERSION_1_1,
                                  NULL, text, strlen (text));
  if (SPDY_YES
      != SPDY_queue_response (request, response, true, false, &on_sent, cls))
  {
    SPDY_destroy_response (response);
    SPDY_destroy_request (request);
  }
}

static struct SPDY_Daemon *
start (const char *name, const char *port, unsigned int seconds)
{
  struct sockaddr_in address
    = loopback ((unsigned int) strtoul (port, NULL, 10));
  struct SPDY_Daemon *daemon = SPDY_start_daemon (
    0, NULL, NULL, &on_session, &on_close, &on_request, NULL, (void *) name,
    SPDY_DAEMON_OPTION_SOCK_ADDR, &address, SPDY_DAEMON_OPTION_IO_SUBSYSTEM,
    SPDY_IO_SUBSYSTEM_RAW, SPDY_DAEMON_OPTION_SESSION_TIMEOUT, seconds,
    SPDY_DAEMON_OPTION_END);

  if (NULL == daemon)
  {
    fprintf (stderr, "cannot listen on port %s\n", port);
    exit (1);
  }
  print_port (daemon);
  return daemon;
}

int
main (int argc, char **argv)
{
  struct SPDY_Daemon *daemons[2];
  unsigned int seconds
    = argc > 3 ? (unsigned int) strtoul (argv[3], NULL, 10) : 0;

  if (argc < 3)
  {
    fprintf (stderr, "usage: event_loop PORT-A PORT-B [SECONDS]\n");
    return 2;
  }
  (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW);
  daemons[0] = start ("A", argv[1], seconds);
  daemons[1] = start ("B", argv[2], seconds);
  run_until_stopped (daemons, 2);
  SPDY_deinit ();
  return 0;
}
