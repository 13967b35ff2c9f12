! SPDX-License-Identifier: Apache-2.0
!
! Reads one weight of a model into a Fortran array, and prints its shape, sum and first element. Fortran's first index
! runs fastest, so the array has the dimensions of the tensor in reverse.
!
!   gfortran example.f90 -L DIRECTORY_OF_THE_LIBRARY -lfsdp_checkpoint -o example
!   ./example checkpoints model/transformer.wte.weight

module fsdp_checkpoint
  use iso_c_binding
  implicit none

  integer(c_int32_t), parameter :: fsdp_ok = 0
  integer(c_int32_t), parameter :: fsdp_float64 = 0

  type, bind(c) :: fsdp_tensor
    type(c_ptr) :: name
    integer(c_int32_t) :: dtype
    integer(c_int32_t) :: ndim
    type(c_ptr) :: dims
    integer(c_int64_t) :: numel
  end type fsdp_tensor

  type, bind(c) :: fsdp_read
    integer(c_int64_t) :: tensor
    integer(c_int64_t) :: begin
    integer(c_int64_t) :: end
    integer(c_int32_t) :: dtype
    type(c_ptr) :: out
  end type fsdp_read

  interface
    function fsdp_reader_open(path, options, reader) bind(c)
      import
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: reader
      integer(c_int32_t) :: fsdp_reader_open
    end function fsdp_reader_open

    subroutine fsdp_reader_close(reader) bind(c)
      import
      type(c_ptr), value :: reader
    end subroutine fsdp_reader_close

    function fsdp_reader_find(reader, name) bind(c)
      import
      type(c_ptr), value :: reader
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t) :: fsdp_reader_find
    end function fsdp_reader_find

    function fsdp_reader_tensor(reader, number, tensor) bind(c)
      import
      type(c_ptr), value :: reader
      integer(c_int64_t), value :: number
      type(fsdp_tensor), intent(out) :: tensor
      integer(c_int32_t) :: fsdp_reader_tensor
    end function fsdp_reader_tensor

    function fsdp_reader_read(reader, reads, count, threads) bind(c)
      import
      type(c_ptr), value :: reader
      type(fsdp_read), intent(in) :: reads(*)
      integer(c_int64_t), value :: count
      integer(c_int32_t), value :: threads
      integer(c_int32_t) :: fsdp_reader_read
    end function fsdp_reader_read

    function fsdp_error_message() bind(c)
      import
      type(c_ptr) :: fsdp_error_message
    end function fsdp_error_message

    function strlen(text) bind(c)
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: strlen
    end function strlen
  end interface

contains

  subroutine check(code)
    integer(c_int32_t), intent(in) :: code
    character(kind=c_char), pointer :: text(:)
    type(c_ptr) :: message
    if (code == fsdp_ok) return
    message = fsdp_error_message()
    call c_f_pointer(message, text, [strlen(message)])
    print '(*(a))', text
    stop 1
  end subroutine check

end module fsdp_checkpoint

program example
  use fsdp_checkpoint
  implicit none
  character(len=4096) :: path, name
  type(c_ptr) :: reader
  type(fsdp_tensor) :: tensor
  type(fsdp_read) :: read(1)
  integer(c_int64_t) :: number
  integer(c_int64_t), pointer :: dims(:)
  real(c_double), allocatable, target :: weights(:)

  call get_command_argument(1, path)
  call get_command_argument(2, name)
  call check(fsdp_reader_open(trim(path) // c_null_char, c_null_ptr, reader))
  number = fsdp_reader_find(reader, trim(name) // c_null_char)
  if (number < 0) then
    print '(3a)', trim(path), ' has no ', trim(name)
    stop 1
  end if
  call check(fsdp_reader_tensor(reader, number, tensor))
  call c_f_pointer(tensor%dims, dims, [tensor%ndim])
  allocate(weights(tensor%numel))
  read(1) = fsdp_read(number, 0_c_int64_t, tensor%numel, fsdp_float64, c_loc(weights))
  call check(fsdp_reader_read(reader, read, 1_c_int64_t, 0_c_int32_t))
  print '(a, *(1x, i0))', 'shape', dims(size(dims):1:-1)
  print '(a, 1x, g0)', 'sum', sum(weights)
  print '(a, 1x, g0)', 'first', weights(1)
  deallocate(weights)
  call fsdp_reader_close(reader)
end program example
