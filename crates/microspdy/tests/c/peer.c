/* The server that the foreign SPDY clients of interop/ meet. It serves the same
   paths as the servers there:

     /bytes/N    N bytes, of which byte I has the value I modulo 251
     /echo       the length of a body of such bytes
     /push       a push of /bytes/10000
     /cut        a body that breaks off
     /priority   the priority of the request

     peer [raw | raw3.1 | CERTIFICATE KEY]

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#include "../../examples/example.h"
#include "microspdy_push.h"

struct source
{
  unsigned long long next;
  unsigned long long length;
  bool fails;
};

struct upload
{
  unsigned long long length;
  bool good;
};

static ssize_t
next_block (void *cls, void *buffer, size_t max, bool *more)
{
  struct source *source = cls;
  unsigned char *bytes = buffer;
  size_t count = 0;

  if (source->fails && source->next >= 50000)
    return -1;
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

/* Headers as the other servers send them. */
static struct SPDY_NameValue *
common_headers (void)
{
  struct SPDY_NameValue *headers = SPDY_name_value_create ();

  SPDY_name_value_add (headers, SPDY_HTTP_HEADER_CONTENT_TYPE,
                       "application/octet-stream");
  SPDY_name_value_add (headers, SPDY_HTTP_HEADER_SET_COOKIE, "a=1");
  SPDY_name_value_add (headers, SPDY_HTTP_HEADER_SET_COOKIE, "b=2");
  return headers;
}

static struct SPDY_Response *
response_of (unsigned long long length, bool fails, struct source **source)
{
  struct SPDY_NameValue *headers = common_headers ();
  struct SPDY_Response *response;

  *source = calloc (1, sizeof (struct source));
  if (NULL == *source)
    abort ();
  (*source)->length = length;
  (*source)->fails = fails;
  response = SPDY_build_response_with_callback (SPDY_HTTP_OK, "OK",
                                                SPDY_HTTP_VERSION_1_1, headers,
                                                &next_block, *source, 0);
  SPDY_name_value_destroy (headers);
  return response;
}

static void
answer_bytes (struct SPDY_Request *request, unsigned long long length,
              bool fails)
{
  struct source *source;
  struct SPDY_Response *response = response_of (length, fails, &source);

  if (SPDY_YES
      != SPDY_queue_response (request, response, true, true, &destroy_all,
                              source))
    destroy_all (source, response, request, SPDY_RESPONSE_RESULT_STREAM_CLOSED,
                 false);
}

static void
push_bytes (struct SPDY_Request *request, const char *scheme, const char *host)
{
  struct source *source;
  struct SPDY_Response *response = response_of (10000, false, &source);

  if (NULL
      == SPDYX_push_response (request, scheme, host, "/bytes/10000", 7,
                              response, &destroy_all, source))
    destroy_all (source, response, NULL, SPDY_RESPONSE_RESULT_STREAM_CLOSED,
                 false);
}

static void
on_request (void *cls, struct SPDY_Request *request, uint8_t priority,
            const char *method, const char *path, const char *version,
            const char *host, const char *scheme,
            struct SPDY_NameValue *headers, bool more)
{
  char text[8];

  (void) cls;
  (void) method;
  (void) version;
  (void) headers;
  if (0 == strncmp (path, "/bytes/", 7))
    answer_bytes (request, strtoull (path + 7, NULL, 10), false);
  else if (0 == strcmp (path, "/cut"))
    answer_bytes (request, 100000, true);
  else if (0 == strcmp (path, "/echo") && more)
  {
    struct upload *upload = calloc (1, sizeof (struct upload));

    if (NULL == upload)
      abort ();
    upload->good = true;
    SPDY_set_cls_to_request (request, upload);
  }
  else if (0 == strcmp (path, "/push"))
  {
    push_bytes (request, scheme, host);
    answer_text (request, SPDY_HTTP_OK, "done");
  }
  else if (0 == strcmp (path, "/priority"))
  {
    snprintf (text, sizeof (text), "%u", (unsigned int) priority);
    answer_text (request, SPDY_HTTP_OK, text);
  }
  else
    answer_text (request, SPDY_HTTP_NOT_FOUND, "none");
}

static int
on_data (void *cls, struct SPDY_Request *request, const void *buf, size_t size,
         bool more)
{
  struct upload *upload = SPDY_get_cls_from_request (request);
  const unsigned char *bytes = buf;
  char text[64];
  size_t i;

  (void) cls;
  if (NULL == upload)
    return SPDY_NO;
  for (i = 0; i < size; i++)
    upload->good = upload->good && bytes[i] == (upload->length + i) % 251;
  upload->length += size;
  if (more)
    return SPDY_YES;
  if (upload->good)
    snprintf (text, sizeof (text), "ok %llu", upload->length);
  else
    snprintf (text, sizeof (text), "bad");
  SPDY_set_cls_to_request (request, NULL);
  free (upload);
  answer_text (request, SPDY_HTTP_OK, text);
  return SPDY_YES;
}

static void
on_ended (void *cls, struct SPDY_Request *request,
          enum SPDY_RESPONSE_RESULT status)
{
  (void) cls;
  (void) status;
  free (SPDY_get_cls_from_request (request));
}

int
main (int argc, char **argv)
{
  struct sockaddr_in address = loopback (0);
  struct SPDY_Daemon *daemon;
  int subsystem = SPDY_IO_SUBSYSTEM_RAW;
  int flags = SPDY_DAEMON_FLAG_NO;

  if (argc < 2)
  {
    fprintf (stderr, "usage: peer raw | raw3.1 | CERTIFICATE KEY\n");
    return 2;
  }
  if (argc > 2)
    subsystem = SPDY_IO_SUBSYSTEM_OPENSSL;
  else if (0 == strcmp (argv[1], "raw3.1"))
    flags = SPDYX_DAEMON_FLAG_VERSION_3_1;
  (SPDY_init) (subsystem);
  daemon = SPDY_start_daemon (
    0, argc > 2 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL, NULL, NULL,
    &on_request, &on_data, NULL, SPDY_DAEMON_OPTION_SOCK_ADDR, &address,
    SPDY_DAEMON_OPTION_IO_SUBSYSTEM, subsystem, SPDY_DAEMON_OPTION_FLAGS,
    flags, SPDY_DAEMON_OPTION_END);
  if (NULL == daemon)
  {
    fprintf (stderr, "the daemon did not start\n");
    return 1;
  }
  SPDYX_set_request_ended_callback (daemon, &on_ended, NULL);
  print_port (daemon);
  run_until_stopped (&daemon, 1);
  SPDY_deinit ();
  return 0;
}
