//! Which of our functions stands for which CUDA runtime function.

use crate::{device, driver, error, event, launch, memory, stream};

macro_rules! table {
    ($($name:literal => $function:path),* $(,)?) => {
        /// Address of our function for a CUDA runtime function.
        pub(crate) fn function(name: &str) -> Option<usize> {
            Some(match name {
                $($name => $function as *const () as usize,)*
                _ => return None,
            })
        }
    };
}

table! {
    "cudaStreamCreate" => stream::create,
    "cudaStreamCreateWithFlags" => stream::create_with_flags,
    "cudaStreamCreateWithPriority" => stream::create_with_priority,
    "cudaStreamDestroy" => stream::destroy,
    "cudaStreamSynchronize" => stream::synchronize,
    "cudaStreamQuery" => stream::query,
    "cudaStreamGetId" => stream::get_id,
    "cudaStreamWaitEvent" => event::stream_wait,
    "cudaStreamIsCapturing" => stream::is_capturing,
    "cudaStreamGetCaptureInfo_v2" => stream::capture_info_v2,
    "cudaStreamGetCaptureInfo_v3" => stream::capture_info_v3,
    "cudaThreadExchangeStreamCaptureMode" => stream::exchange_capture_mode,
    "cudaLaunchHostFunc" => stream::launch_host_func,
    "cudaDeviceSynchronize" => stream::device_synchronize,
    "cudaEventCreate" => event::create,
    "cudaEventCreateWithFlags" => event::create_with_flags,
    "cudaEventDestroy" => event::destroy,
    "cudaEventRecord" => event::record,
    "cudaEventQuery" => event::query,
    "cudaEventSynchronize" => event::synchronize,
    "cudaMalloc" => memory::malloc,
    "cudaFree" => memory::free,
    "cudaHostAlloc" => memory::host_alloc,
    "cudaFreeHost" => memory::free,
    "cudaHostRegister" => memory::host_register,
    "cudaHostUnregister" => memory::host_unregister,
    "cudaHostGetDevicePointer" => memory::host_get_device_pointer,
    "cudaMemcpy" => memory::memcpy,
    "cudaMemset" => memory::memset,
    "cudaMemcpyAsync" => memory::memcpy_async,
    "cudaMemsetAsync" => memory::memset_async,
    "cudaPointerGetAttributes" => memory::pointer_attributes,
    "cudaMemPoolCreate" => memory::pool_create,
    "cudaMemPoolDestroy" => memory::pool_destroy,
    "cudaMemPoolSetAttribute" => memory::pool_set_attribute,
    "cudaMallocFromPoolAsync" => memory::malloc_from_pool,
    "cudaFreeAsync" => memory::free_async,
    "cudaGetDevice" => device::get,
    "cudaSetDevice" => device::set,
    "cudaGetDeviceCount" => device::get_count,
    "cudaDriverGetVersion" => device::version,
    "cudaRuntimeGetVersion" => device::version,
    "cudaDeviceSetLimit" => device::set_limit,
    "cudaDeviceGetPCIBusId" => device::bus_id,
    "cudaDeviceGetByPCIBusId" => device::by_bus_id,
    "cudaDeviceCanAccessPeer" => device::can_access_peer,
    "cudaDeviceGetAttribute" => device::attribute,
    "cudaGetDeviceProperties_v2" => device::properties,
    "cudaGetLastError" => error::get_last_error,
    "cudaGetErrorString" => error::get_error_string,
    "cudaFuncGetAttributes" => launch::attributes,
    "cudaFuncSetAttribute" => launch::set_attribute,
    "cudaGetFuncBySymbol" => launch::by_symbol,
    "cudaLaunchKernel" => launch::kernel,
    "cudaLaunchKernelExC" => launch::kernel_ex,
    "cudaGetDriverEntryPoint" => driver::entry_point,
    "cudaGetDriverEntryPointByVersion" => driver::entry_point_by_version,
}
