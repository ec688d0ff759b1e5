/* A response that is made while it is sent: GET /N has N bytes, of which byte I
   has the value I modulo 251. Every other call has nothing ready, as a program
   that waits for its own source. /fail breaks off after the first block.

     response_by_callback PORT

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#include "example.h"

struct source
{
  unsigned long long next;
  unsigned long long length;
  bool fails;
  bool paused;
};

static ssize_t
next_block (void *cls, void *buffer, size_t max, bool *more)
{
  struct source *source = cls;
  unsigned char *bytes = buffer;
  size_t count = 0;

  *more = true;
  if (source->fails && source->next > 0)
    return -1;
  source->paused = ! source->paused;
  if (source->paused)
    return 0;
  while (count < max && source->next < source->length)
    bytes[count++] = (unsigned char) (source->next++ % 251);
  *more = source->next < source->length;
  return (ssize_t) count;
}

static void
destroy_all (void *cls, struct SPDY_Response *response,
             struct SPDY_Request *request, enum SPDY_RESPONSE_RESULT status,
             bool streamopened)
{
  free (cls);
  destroy_both (NULL, response, request, status, streamopened);
}

static void
on_request (void *cls, struct SPDY_Request *request, uint8_t priority,
            const char *method, const char *path, const char *version,
            const char *host, const char *scheme,
            struct SPDY_NameValue *headers, bool more)
{
  struct source *source = calloc (1, sizeof (struct source));
  struct SPDY_Response *response;

  (void) cls;
  (void) priority;
  (void) method;
  (void) version;
  (void) host;
  (void) scheme;
  (void) headers;
  (void) more;
  if (NULL == source)
    abort ();
  source->fails = 0 == strcmp (path, "/fail");
  source->length = source->fails ? 100000 : strtoull (path + 1, NULL, 10);
  response = SPDY_build_response_with_callback (
    SPDY_HTTP_OK, "OK", SPDY_HTTP_VERSION_1_1, NULL, &next_block, source, 4096);
  if (SPDY_YES
      != SPDY_queue_response (request, response, true, false, &destroy_all,
                              source))
  {
    free (source);
    SPDY_destroy_response (response);
    SPDY_destroy_request (request);
  }
}

int
main (int argc, char **argv)
{
  struct sockaddr_in address;
  struct SPDY_Daemon *daemon;

  if (argc < 2)
  {
    fprintf (stderr, "usage: response_by_callback PORT\n");
    return 2;
  }
  address = loopback ((unsigned int) strtoul (argv[1], NULL, 10));
  (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW);
  daemon = SPDY_start_daemon (
    0, NULL, NULL, NULL, NULL, &on_request, NULL, NULL,
    SPDY_DAEMON_OPTION_SOCK_ADDR, &address, SPDY_DAEMON_OPTION_IO_SUBSYSTEM,
    SPDY_IO_SUBSYSTEM_RAW, SPDY_DAEMON_OPTION_END);
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
