/* A server that does not answer: it holds each request, except those for /check.
   A request for /check lets it use all requests that it holds.

     ended [known | destroys]

   With an argument, the program has a callback for requests that end. The
   callback of "destroys" also destroys the request. Each line of the output is
   an event, or tells what a call returned for a request.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#include "../../examples/example.h"
#include "microspdy_push.h"

#define MAX_HELD 512

/* A request without an answer. The text belongs to the library. */
struct held
{
  struct SPDY_Request *request;
  struct SPDY_NameValue *headers;
  const char *path;
  void *memory;
};

static struct held all[MAX_HELD];
static int count;
static bool has_callback;
static bool destroys;
static struct SPDY_Response *answer;

static void
on_request (void *cls, struct SPDY_Request *request, uint8_t priority,
            const char *method, const char *path, const char *version,
            const char *host, const char *scheme,
            struct SPDY_NameValue *headers, bool more)
{
  struct held *held;
  int i;

  (void) cls;
  (void) priority;
  (void) method;
  (void) version;
  (void) host;
  (void) scheme;
  (void) more;
  if (0 == strcmp (path, "/check"))
  {
    for (i = 0; i < count; i++)
      printf ("cls %d headers %d queue %d\n",
              NULL != SPDY_get_cls_from_request (all[i].request),
              SPDY_name_value_iterate (all[i].headers, NULL, NULL),
              SPDY_queue_response (all[i].request, answer, true, false, NULL,
                                   NULL));
    fflush (stdout);
    answer_text (request, SPDY_HTTP_OK, "checked");
    return;
  }
  if (MAX_HELD == count)
    abort ();
  held = &all[count++];
  held->request = request;
  held->headers = headers;
  held->path = path;
  held->memory = malloc (1);
  SPDY_set_cls_to_request (request, held->memory);
  printf ("request %s\n", path);
  fflush (stdout);
}

static int
on_data (void *cls, struct SPDY_Request *request, const void *buf, size_t size,
         bool more)
{
  (void) cls;
  (void) request;
  (void) buf;
  (void) more;
  printf ("data %u\n", (unsigned int) size);
  fflush (stdout);
  return SPDY_YES;
}

/* All texts are still those of the requests. */
static void
on_close (void *cls, struct SPDY_Session *session, int by_client)
{
  int i;

  (void) cls;
  (void) by_client;
  printf ("closed\n");
  for (i = 0; i < count; i++)
    if (session == SPDY_get_session_for_request (all[i].request))
    {
      printf ("has %s\n", all[i].path);
      if (! has_callback)
        free (all[i].memory);
    }
  fflush (stdout);
}

static void
on_ended (void *cls, struct SPDY_Request *request,
          enum SPDY_RESPONSE_RESULT status)
{
  int i;

  (void) cls;
  for (i = 0; i < count; i++)
    if (request == all[i].request)
      printf ("ended %d %s\n", (int) status, all[i].path);
  fflush (stdout);
  free (SPDY_get_cls_from_request (request));
  if (destroys)
    SPDY_destroy_request (request);
}

int
main (int argc, char **argv)
{
  struct sockaddr_in address = loopback (0);
  struct SPDY_Daemon *daemon;

  (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW);
  answer = SPDY_build_response (SPDY_HTTP_OK, NULL, SPDY_HTTP_VERSION_1_1,
                                NULL, NULL, 0);
  daemon = SPDY_start_daemon (
    0, NULL, NULL, NULL, &on_close, &on_request, &on_data, NULL,
    SPDY_DAEMON_OPTION_SOCK_ADDR, &address, SPDY_DAEMON_OPTION_IO_SUBSYSTEM,
    SPDY_IO_SUBSYSTEM_RAW, SPDY_DAEMON_OPTION_END);
  if (NULL == daemon || NULL == answer)
    return 1;
  has_callback = argc > 1;
  destroys = has_callback && 0 == strcmp (argv[1], "destroys");
  if (has_callback
      && SPDY_YES != SPDYX_set_request_ended_callback (daemon, &on_ended, NULL))
    return 1;
  print_port (daemon);
  run_until_stopped (&daemon, 1);
  SPDY_destroy_response (answer);
  SPDY_deinit ();
  return 0;
}
