/* Values, handles and arguments: everything that needs no client. A failing
   check prints its line and ends the program with 1.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "microspdy.h"
#include "microspdy_push.h"

#define CHECK(condition)                                             \
  do                                                                 \
  {                                                                  \
    if (! (condition))                                               \
    {                                                                \
      fprintf (stderr, "line %d: %s\n", __LINE__, #condition);       \
      exit (1);                                                      \
    }                                                                \
  }                                                                  \
  while (0)

static int faults;

static void
count_fault (void *cls, const char *file, unsigned int line, const char *reason)
{
  CHECK (cls == &faults);
  CHECK (NULL != file && line > 0 && strlen (reason) > 0);
  faults++;
}

static int
stop_at_second (void *cls, const char *name, const char *const *value,
                int num_values)
{
  int *visited = (int *) cls;

  CHECK (NULL != name && NULL != value && num_values > 0);
  return 2 == ++*visited ? SPDY_NO : SPDY_YES;
}

/* Only SPDY_YES continues. */
static int
stop_with_two (void *cls, const char *name, const char *const *value,
               int num_values)
{
  CHECK (NULL != name && NULL != value && num_values > 0);
  ++*(int *) cls;
  return 2;
}

static int
count_settings (void *cls, enum SPDY_SETTINGS id, int32_t value, uint8_t flags)
{
  CHECK (id >= 1 && id <= 8 && value >= 0 && flags <= 3);
  ++*(int *) cls;
  return SPDY_YES;
}

static void
check_name_values (void)
{
  struct SPDY_NameValue *list = SPDY_name_value_create ();
  const char *const *values;
  int count = 0;
  int visited = 0;

  CHECK (NULL != list);
  CHECK (0 == SPDY_name_value_iterate (list, NULL, NULL));
  CHECK (SPDY_YES == SPDY_name_value_add (list, "accept", "a"));
  CHECK (SPDY_YES == SPDY_name_value_add (list, "accept", "b"));
  CHECK (SPDY_NO == SPDY_name_value_add (list, "accept", "a"));
  CHECK (SPDY_YES == SPDY_name_value_add (list, "empty", ""));
  CHECK (SPDY_YES == SPDY_name_value_add (list, "third", "c"));
  CHECK (SPDY_INPUT_ERROR == SPDY_name_value_add (list, "Accept", "a"));
  CHECK (SPDY_INPUT_ERROR == SPDY_name_value_add (list, "", "a"));
  CHECK (SPDY_INPUT_ERROR == SPDY_name_value_add (list, NULL, "a"));
  CHECK (SPDY_INPUT_ERROR == SPDY_name_value_add (list, "a", NULL));
  CHECK (SPDY_INPUT_ERROR == SPDY_name_value_add (NULL, "a", "a"));
  values = SPDY_name_value_lookup (list, "accept", &count);
  CHECK (NULL != values && 2 == count);
  CHECK (0 == strcmp (values[0], "a") && 0 == strcmp (values[1], "b"));
  CHECK (NULL == SPDY_name_value_lookup (list, "none", &count));
  CHECK (NULL == SPDY_name_value_lookup (list, "accept", NULL));
  CHECK (3 == SPDY_name_value_iterate (list, NULL, NULL));
  CHECK (2 == SPDY_name_value_iterate (list, &stop_at_second, &visited));
  CHECK (1 == SPDY_name_value_iterate (list, &stop_with_two, &visited));
  SPDY_name_value_destroy (list);
  /* Late calls find nothing. */
  SPDY_name_value_destroy (list);
  CHECK (SPDY_INPUT_ERROR == SPDY_name_value_add (list, "a", "a"));
  CHECK (SPDY_INPUT_ERROR == SPDY_name_value_iterate (list, NULL, NULL));
  SPDY_name_value_destroy (NULL);
}

static void
check_settings (void)
{
  struct SPDY_Settings *set = (struct SPDY_Settings *) SPDY_settings_create ();
  enum SPDY_FLAG_SETTINGS flags = SPDY_FLAG_SETTINGS_PERSISTED;
  enum SPDY_FLAG_SETTINGS none = (enum SPDY_FLAG_SETTINGS) 0;
  int32_t value = 0;
  int visited = 0;

  CHECK (NULL != set);
  CHECK (SPDY_YES
         == SPDY_settings_add (set, SPDY_SETTINGS_INITIAL_WINDOW_SIZE,
                               SPDY_FLAG_SETTINGS_PERSIST_VALUE, 100000));
  CHECK (SPDY_NO == SPDY_settings_add (set, (enum SPDY_SETTINGS) 9, none, 1));
  CHECK (SPDY_NO
         == SPDY_settings_add (set, SPDY_SETTINGS_ROUND_TRIP_TIME, none, -1));
  CHECK (SPDY_YES
         == SPDY_settings_lookup (set, SPDY_SETTINGS_INITIAL_WINDOW_SIZE,
                                  &flags, &value));
  CHECK (SPDY_FLAG_SETTINGS_PERSIST_VALUE == flags && 100000 == value);
  CHECK (SPDY_NO
         == SPDY_settings_lookup (set, SPDY_SETTINGS_CURRENT_CWND, &flags,
                                  &value));
  CHECK (1 == SPDY_settings_iterate (set, &count_settings, &visited));
  CHECK (1 == visited && 1 == SPDY_settings_iterate (set, NULL, NULL));
  CHECK (SPDY_INPUT_ERROR
         == SPDY_send_settings (NULL, set, (enum SPDY_FLAG_SETTINGS_FRAME) 0,
                                0));
  SPDY_settings_destroy (set);
  CHECK (SPDY_INPUT_ERROR == SPDY_settings_iterate (set, NULL, NULL));
}

static ssize_t
no_body (void *cls, void *buffer, size_t max, bool *more)
{
  (void) cls;
  (void) buffer;
  (void) max;
  (void) more;
  return 0;
}

static void
check_responses (void)
{
  const char *version = SPDY_HTTP_VERSION_1_1;
  struct SPDY_NameValue *headers = SPDY_name_value_create ();
  struct SPDY_Response *response;

  response = SPDY_build_response (200, "OK", version, headers, "body", 4);
  CHECK (NULL != response);
  SPDY_destroy_response (response);
  SPDY_destroy_response (response);
  CHECK (NULL == SPDY_build_response (200, NULL, NULL, NULL, NULL, 0));
  CHECK (NULL == SPDY_build_response (200, NULL, version, NULL, NULL, 1));
  CHECK (NULL == SPDY_build_response (1000, NULL, version, NULL, NULL, 0));
  CHECK (NULL == SPDY_build_response (200, "a\nb", version, NULL, NULL, 0));
  SPDY_name_value_add (headers, "bad", "a\r\nb");
  CHECK (NULL == SPDY_build_response (200, NULL, version, headers, NULL, 0));
  SPDY_name_value_destroy (headers);
  CHECK (NULL == SPDY_build_response (200, NULL, version, headers, NULL, 0));
  CHECK (NULL
         == SPDY_build_response_with_callback (200, NULL, version, NULL, NULL,
                                               NULL, 0));
  CHECK (NULL
         == SPDY_build_response_with_callback (
           200, NULL, version, NULL, &no_body, NULL,
           SPDY_MAX_SUPPORTED_FRAME_SIZE + 1));
  response = SPDY_build_response_with_callback (
    200, NULL, version, NULL, &no_body, NULL, SPDY_MAX_SUPPORTED_FRAME_SIZE);
  CHECK (NULL != response);
  CHECK (SPDY_INPUT_ERROR
         == SPDY_queue_response (NULL, response, true, true, NULL, NULL));
  SPDY_destroy_response (response);
}

static void
check_null_arguments (void)
{
  struct sockaddr *address;
  unsigned long long timeout;
  fd_set set;

  FD_ZERO (&set);
  SPDY_run (NULL);
  SPDY_stop_daemon (NULL);
  SPDY_close_session (NULL);
  SPDY_destroy_request (NULL);
  SPDY_destroy_response (NULL);
  SPDY_set_cls_to_session (NULL, &set);
  SPDY_set_cls_to_request (NULL, &set);
  CHECK (SPDY_INPUT_ERROR == SPDY_get_fdset (NULL, &set, &set, &set));
  CHECK (SPDY_INPUT_ERROR == SPDY_get_timeout (NULL, &timeout));
  CHECK (NULL == SPDY_get_cls_from_session (NULL));
  CHECK (NULL == SPDY_get_cls_from_request (NULL));
  CHECK (NULL == SPDY_get_session_for_request (NULL));
  CHECK (0 == SPDY_get_remote_addr (NULL, &address));
  CHECK (SPDY_INPUT_ERROR == SPDY_send_ping (NULL, NULL, NULL));
  CHECK (SPDY_INPUT_ERROR == SPDYX_set_priority (NULL, 0));
  CHECK (SPDY_INPUT_ERROR == SPDYX_takes_push (NULL));
  CHECK (SPDY_INPUT_ERROR
         == SPDYX_set_request_ended_callback (NULL, NULL, NULL));
  CHECK (SPDY_INPUT_ERROR == SPDYX_get_version (NULL));
}

/* Starts a daemon on the loopback address, with two more options. */
static struct SPDY_Daemon *
start (int first, int first_value, int second, int second_value)
{
  static unsigned char address[128];
  struct sockaddr *name = (struct sockaddr *) (void *) address;

  /* Family AF_INET, port 0, address 127.0.0.1. */
  memset (address, 0, sizeof (address));
  name->sa_family = AF_INET;
  address[4] = 127;
  address[7] = 1;
  return SPDY_start_daemon (0, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                            SPDY_DAEMON_OPTION_SOCK_ADDR, name, first,
                            first_value, second, second_value,
                            SPDY_DAEMON_OPTION_END);
}

static void
check_daemons (void)
{
  const int raw = SPDY_IO_SUBSYSTEM_RAW;
  const int io = SPDY_DAEMON_OPTION_IO_SUBSYSTEM;
  const int flags = SPDY_DAEMON_OPTION_FLAGS;
  struct SPDY_Daemon *daemon, *other;
  unsigned long long timeout;
  fd_set set;

  /* Before SPDY_init, there are no daemons. */
  CHECK (NULL == start (io, raw, flags, 0));
  CHECK (SPDY_YES == (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW));
  daemon = start (io, raw, flags, SPDY_DAEMON_FLAG_NO_DELAY);
  other = start (io, raw, SPDY_DAEMON_OPTION_MAX_NUM_FRAMES, 1);
  CHECK (NULL != daemon && NULL != other && daemon != other);
  FD_ZERO (&set);
  CHECK (SPDY_get_fdset (daemon, &set, &set, &set) > 0);
  CHECK (SPDY_INPUT_ERROR == SPDY_get_fdset (daemon, NULL, &set, &set));
  CHECK (SPDY_NO == SPDY_get_timeout (daemon, &timeout));
  SPDY_run (daemon);
  SPDY_stop_daemon (daemon);
  SPDY_stop_daemon (daemon);
  SPDY_run (daemon);
  CHECK (SPDY_INPUT_ERROR == SPDY_get_timeout (daemon, &timeout));
  SPDY_run (other);
  SPDY_stop_daemon (other);

  CHECK (NULL == start (io, raw, io, raw));
  CHECK (NULL == start (io, raw, 32, 1));
  CHECK (NULL == start (io, raw, flags, SPDY_DAEMON_FLAG_ONLY_IPV6));
  CHECK (NULL == start (flags, 0, io, SPDY_IO_SUBSYSTEM_OPENSSL));
  CHECK (NULL
         == SPDY_start_daemon (0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, io,
                               raw, SPDY_DAEMON_OPTION_END));
  CHECK (NULL
         == SPDY_start_daemon (0, "/nonexistent", "/nonexistent", NULL, NULL,
                               NULL, NULL, NULL, SPDY_DAEMON_OPTION_END));
  SPDY_deinit ();
}

static void
check_faults (void)
{
  SPDY_set_panic_func (&count_fault, &faults);
  CHECK (SPDY_YES == SPDY_init ());
  CHECK (0 == faults);
  CHECK (SPDY_YES == SPDY_init ());
  CHECK (1 == faults);
  SPDY_deinit ();
  CHECK (1 == faults);
  SPDY_deinit ();
  CHECK (2 == faults);
  SPDY_set_panic_func (NULL, NULL);
}

int
main (void)
{
  check_name_values ();
  check_settings ();
  check_responses ();
  check_null_arguments ();
  check_daemons ();
  check_faults ();
  return 0;
}
