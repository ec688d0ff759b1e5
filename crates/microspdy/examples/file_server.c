/* A file server over SPDY. It reads files in blocks, when they are about to be
   sent.

     file_server DIRECTORY PORT [raw | raw3.1 | CERTIFICATE KEY]

   Port 0 lets the system choose; the program prints the port. A POST request is
   answered with the length of its body.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "example.h"
#include "microspdy_push.h"

static const char *directory;

/* The body of a POST request so far. */
struct upload
{
  unsigned long long length;
};

/* Reads the next block of a file. */
static ssize_t
read_block (void *cls, void *buffer, size_t max, bool *more)
{
  FILE *file = cls;
  size_t length = fread (buffer, 1, max, file);

  if (ferror (file))
    return -1;
  *more = ! feof (file);
  return (ssize_t) length;
}

static void
close_file (void *cls, struct SPDY_Response *response,
            struct SPDY_Request *request, enum SPDY_RESPONSE_RESULT status,
            bool streamopened)
{
  fclose (cls);
  destroy_both (NULL, response, request, status, streamopened);
}

/* Opens a file below the directory. Paths with ".." never leave it, because they
   are refused. */
static FILE *
open_below (const char *path, struct stat *facts)
{
  char name[4096];
  FILE *file;
  int descriptor;

  if ('/' != path[0] || NULL != strstr (path, "..")
      || (size_t) snprintf (name, sizeof (name), "%s%s", directory, path)
           >= sizeof (name))
    return NULL;
  descriptor = open (name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0)
    return NULL;
  if (0 != fstat (descriptor, facts) || ! S_ISREG (facts->st_mode)
      || NULL == (file = fdopen (descriptor, "rb")))
  {
    close (descriptor);
    return NULL;
  }
  return file;
}

static void
answer_file (struct SPDY_Request *request, const char *path)
{
  struct SPDY_NameValue *headers;
  struct SPDY_Response *response;
  struct stat facts;
  char length[32];
  FILE *file = open_below (path, &facts);

  if (NULL == file)
  {
    answer_text (request, SPDY_HTTP_NOT_FOUND, "not found\n");
    return;
  }
  snprintf (length, sizeof (length), "%lld", (long long) facts.st_size);
  headers = SPDY_name_value_create ();
  SPDY_name_value_add (headers, SPDY_HTTP_HEADER_CONTENT_LENGTH, length);
  SPDY_name_value_add (headers, SPDY_HTTP_HEADER_CONTENT_TYPE,
                       "application/octet-stream");
  response = SPDY_build_response_with_callback (
    SPDY_HTTP_OK, "OK", SPDY_HTTP_VERSION_1_1, headers, &read_block, file, 0);
  SPDY_name_value_destroy (headers);
  if (NULL == response
      || SPDY_YES
           != SPDY_queue_response (request, response, true, true, &close_file,
                                   file))
  {
    fclose (file);
    SPDY_destroy_response (response);
    SPDY_destroy_request (request);
  }
}

static void
on_request (void *cls, struct SPDY_Request *request, uint8_t priority,
            const char *method, const char *path, const char *version,
            const char *host, const char *scheme,
            struct SPDY_NameValue *headers, bool more)
{
  (void) cls;
  (void) priority;
  (void) version;
  (void) host;
  (void) scheme;
  (void) headers;
  if (0 == strcmp (method, SPDY_HTTP_METHOD_GET))
    answer_file (request, path);
  else if (0 == strcmp (method, SPDY_HTTP_METHOD_POST) && more)
    SPDY_set_cls_to_request (request, calloc (1, sizeof (struct upload)));
  else
    answer_text (request, SPDY_HTTP_METHOD_NOT_ALLOWED, "not allowed\n");
}

static int
on_data (void *cls, struct SPDY_Request *request, const void *buf, size_t size,
         bool more)
{
  struct upload *upload = SPDY_get_cls_from_request (request);
  char text[64];

  (void) cls;
  (void) buf;
  if (NULL == upload)
    return SPDY_NO;
  upload->length += size;
  if (more)
    return SPDY_YES;
  snprintf (text, sizeof (text), "%llu bytes\n", upload->length);
  SPDY_set_cls_to_request (request, NULL);
  free (upload);
  answer_text (request, SPDY_HTTP_OK, text);
  return SPDY_YES;
}

/* The client has given up its upload. */
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
  struct sockaddr_in address;
  struct SPDY_Daemon *daemon;
  int subsystem = SPDY_IO_SUBSYSTEM_RAW;
  int flags = SPDY_DAEMON_FLAG_NO;

  if (argc < 3)
  {
    fprintf (stderr,
             "usage: file_server DIRECTORY PORT [raw|raw3.1|CERT KEY]\n");
    return 2;
  }
  directory = argv[1];
  address = loopback ((unsigned int) strtoul (argv[2], NULL, 10));
  if (argc > 4)
    subsystem = SPDY_IO_SUBSYSTEM_OPENSSL;
  else if (argc > 3 && 0 == strcmp (argv[3], "raw3.1"))
    flags = SPDYX_DAEMON_FLAG_VERSION_3_1;

  (SPDY_init) (subsystem);
  daemon = SPDY_start_daemon (
    0, argc > 4 ? argv[3] : NULL, argc > 4 ? argv[4] : NULL, NULL, NULL,
    &on_request, &on_data, NULL, SPDY_DAEMON_OPTION_SOCK_ADDR, &address,
    SPDY_DAEMON_OPTION_IO_SUBSYSTEM, subsystem, SPDY_DAEMON_OPTION_FLAGS,
    flags, SPDY_DAEMON_OPTION_SESSION_TIMEOUT, 300u, SPDY_DAEMON_OPTION_END);
  if (NULL == daemon)
  {
    fprintf (stderr, "cannot listen on port %s: %s\n", argv[2],
             strerror (errno));
    return 1;
  }
  SPDYX_set_request_ended_callback (daemon, &on_ended, NULL);
  print_port (daemon);
  run_until_stopped (&daemon, 1);
  SPDY_deinit ();
  return 0;
}
