/* Reads the variadic arguments of the interface. Rust cannot do so on its stable
   channel. The exported functions jump here with all of their arguments, and
   each function here calls the Rust function that does the work.

   The Rust functions are declared as hidden, which keeps them out of the list
   of exported symbols. */

#include "microspdy.h"

#define HIDDEN __attribute__ ((visibility ("hidden")))

/* The same struct as `DaemonOptions` in src/ffi/daemon.rs. */
struct daemon_options
{
  unsigned int session_timeout;
  int flags;
  int io_subsystem;
  uint32_t max_num_frames;
  const struct sockaddr *address;
};

HIDDEN int microspdy_init (int subsystems);

HIDDEN struct SPDY_Daemon *
microspdy_start_daemon (uint16_t port, const char *certfile,
                        const char *keyfile, SPDY_NewSessionCallback nscb,
                        SPDY_SessionClosedCallback sccb,
                        SPDY_NewRequestCallback nrcb,
                        SPDY_NewDataCallback npdcb, void *cls,
                        const struct daemon_options *options);

HIDDEN int microspdy_send_settings (struct SPDY_Session *session,
                                    const struct SPDY_Settings *settings,
                                    int flags);

HIDDEN int microspdy_init_variadic (enum SPDY_IO_SUBSYSTEM subsystems, ...);

HIDDEN struct SPDY_Daemon *microspdy_start_daemon_variadic (
  uint16_t port, const char *certfile, const char *keyfile,
  SPDY_NewSessionCallback nscb, SPDY_SessionClosedCallback sccb,
  SPDY_NewRequestCallback nrcb, SPDY_NewDataCallback npdcb, void *cls, ...);

HIDDEN int microspdy_send_settings_variadic (
  struct SPDY_Session *session, struct SPDY_Settings *settings,
  enum SPDY_FLAG_SETTINGS_FRAME flags, ...);

int
microspdy_init_variadic (enum SPDY_IO_SUBSYSTEM subsystems, ...)
{
  return microspdy_init ((int) subsystems);
}

int
microspdy_send_settings_variadic (struct SPDY_Session *session,
                                  struct SPDY_Settings *settings,
                                  enum SPDY_FLAG_SETTINGS_FRAME flags, ...)
{
  return microspdy_send_settings (session, settings, (int) flags);
}

/* Reads options up to SPDY_DAEMON_OPTION_END. Returns 0 for an option that is
   unknown or was given before. The type of an unknown option's value is not
   known, so reading stops there. */
static int
read_options (struct daemon_options *options, va_list list)
{
  unsigned int seen = 0;
  int option;

  while (SPDY_DAEMON_OPTION_END != (option = va_arg (list, int)))
  {
    if (option < 0 || 0 != (seen & (unsigned int) option))
      return 0;
    seen |= (unsigned int) option;
    switch (option)
    {
    case SPDY_DAEMON_OPTION_SESSION_TIMEOUT:
      options->session_timeout = va_arg (list, unsigned int);
      break;
    case SPDY_DAEMON_OPTION_SOCK_ADDR:
      options->address = va_arg (list, const struct sockaddr *);
      break;
    case SPDY_DAEMON_OPTION_FLAGS:
      options->flags = va_arg (list, int);
      break;
    case SPDY_DAEMON_OPTION_IO_SUBSYSTEM:
      options->io_subsystem = va_arg (list, int);
      break;
    case SPDY_DAEMON_OPTION_MAX_NUM_FRAMES:
      options->max_num_frames = va_arg (list, uint32_t);
      break;
    default:
      return 0;
    }
  }
  return 1;
}

struct SPDY_Daemon *
microspdy_start_daemon_variadic (uint16_t port, const char *certfile,
                                 const char *keyfile,
                                 SPDY_NewSessionCallback nscb,
                                 SPDY_SessionClosedCallback sccb,
                                 SPDY_NewRequestCallback nrcb,
                                 SPDY_NewDataCallback npdcb, void *cls, ...)
{
  struct daemon_options options = { 0, 0, 0, 0, 0 };
  va_list list;
  int legal;

  va_start (list, cls);
  legal = read_options (&options, list);
  va_end (list);
  if (! legal)
    return 0;
  return microspdy_start_daemon (port, certfile, keyfile, nscb, sccb, nrcb,
                                 npdcb, cls, &options);
}
