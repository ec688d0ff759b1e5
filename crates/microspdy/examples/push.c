/* A page with a style sheet that the client does not have to request.

     push PORT [3.1]

   The program pushes /style.css with each request for /, at a lower priority
   than the page. The function is one of Tandem's additions, see
   microspdy_push.h.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#include "example.h"
#include "microspdy_push.h"

static const char page[]
  = "<!doctype html><link rel=stylesheet href=/style.css><p>Hello</p>\n";
static const char style[] = "p { color: green }\n";

/* The push is announced before the page is queued: the page mentions it. */
static void
push_style (struct SPDY_Request *request, const char *scheme, const char *host)
{
  struct SPDY_NameValue *headers = SPDY_name_value_create ();
  struct SPDY_Response *response;

  SPDY_name_value_add (headers, SPDY_HTTP_HEADER_CONTENT_TYPE, "text/css");
  response = SPDY_build_response (SPDY_HTTP_OK, NULL, SPDY_HTTP_VERSION_1_1,
                                  headers, style, sizeof (style) - 1);
  SPDY_name_value_destroy (headers);
  if (NULL
      == SPDYX_push_response (request, scheme, host, "/style.css", 5, response,
                              &destroy_both, NULL))
    /* The client takes no pushes. It will request the style sheet. */
    SPDY_destroy_response (response);
}

static void
on_request (void *cls, struct SPDY_Request *request, uint8_t priority,
            const char *method, const char *path, const char *version,
            const char *host, const char *scheme,
            struct SPDY_NameValue *headers, bool more)
{
  (void) cls;
  (void) priority;
  (void) method;
  (void) version;
  (void) headers;
  (void) more;
  if (0 == strcmp (path, "/style.css"))
  {
    answer_text (request, SPDY_HTTP_OK, style);
    return;
  }
  if (SPDY_YES == SPDYX_takes_push (SPDY_get_session_for_request (request)))
    push_style (request, scheme, host);
  answer_text (request, SPDY_HTTP_OK, page);
}

int
main (int argc, char **argv)
{
  struct sockaddr_in address;
  struct SPDY_Daemon *daemon;

  if (argc < 2)
  {
    fprintf (stderr, "usage: push PORT [3.1]\n");
    return 2;
  }
  address = loopback ((unsigned int) strtoul (argv[1], NULL, 10));
  (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW);
  daemon = SPDY_start_daemon (
    0, NULL, NULL, NULL, NULL, &on_request, NULL, NULL,
    SPDY_DAEMON_OPTION_SOCK_ADDR, &address, SPDY_DAEMON_OPTION_IO_SUBSYSTEM,
    SPDY_IO_SUBSYSTEM_RAW, SPDY_DAEMON_OPTION_FLAGS,
    argc > 2 ? SPDYX_DAEMON_FLAG_VERSION_3_1 : SPDY_DAEMON_FLAG_NO,
    SPDY_DAEMON_OPTION_END);
  if (NULL == daemon)
  {
    fprintf (stderr, "cannot listen on port %s\n", argv[1]);
    return 1;
  }
  print_port (daemon);
  run_until_stopped (&daemon, 1);
  SPDY_deinit ();
  return 0;
}
